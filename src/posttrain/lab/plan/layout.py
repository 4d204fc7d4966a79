"""The micro-batches of a workload whose rows all have the same length: their tokens, and the grids of attention.

This is a closed form of what models/microbatches.py and models/packing.py do with real rows: rows of a family share
their prefix, families are combined up to the token budget, and spread evenly over as few micro-batches as possible.

A row has P prompt tokens and C completion tokens. P + C - 1 of them are computed, because the last predicts nothing.

`Step` is the arithmetic of one step: the rows, updates, micro-batches and tokens that follow from the settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal, NamedTuple

from posttrain.lab.plan.records import Turns, Workload
from posttrain.models.packing import LEAST_SAVING


class Grid(NamedTuple):
    """Segments that attention computes as one right-padded grid: `rows` x `queries`, each after a shared prefix."""

    rows: int
    queries: int
    prefix: int = 0

    @property
    def keys(self) -> int:
        return self.prefix + self.queries


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The layout of one micro-batch."""

    rows: int
    row_tokens: int
    """Tokens of a padded row."""
    tokens: int
    """Number of tokens that go through the model."""
    scored: int
    """Number of positions before scored tokens, which the head computes."""
    grids: tuple[Grid, ...]

    @property
    def scores(self) -> int:
        """Number of attention scores of one head, over all rows."""
        return sum(grid.rows * grid.queries * grid.keys for grid in self.grids)


class Microbatches(NamedTuple):
    """The micro-batches of one optimizer step: the largest one, and their number."""

    largest: Layout
    number: int


def microbatches(workload: Workload) -> Microbatches:
    """Return the micro-batches of this workload's training passes."""
    shares = shares_prompts(workload)
    rows = ceil(workload.rows / workload.minibatches)
    alike = _rows_alike(workload) if shares else 1
    own, prefix = workload.row_tokens - 1, workload.prompt_tokens if shares else 0
    together, number = deal_out(rows, alike, own, prefix, workload.tokens_per_microbatch)
    return Microbatches(lay_out(workload.row_tokens, workload.scored_tokens, together, prefix), number)


def deal_out(rows: int, alike: int, own: int, prefix: int, budget: int) -> tuple[list[int], int]:
    """Return (rows of each family in the largest micro-batch, number of micro-batches). Each row has `own` tokens, and
    each family of `alike` rows shares a `prefix`."""
    families = ceil(rows / alike)
    whole = prefix + alike * (own - prefix)
    if whole > budget:  # families are cut into parts
        parts = ceil(alike / max(1, (budget - prefix) // max(1, own - prefix)))
        return [ceil(alike / parts)], families * parts
    number = max(1, ceil(families / max(1, budget // max(1, whole))))
    return _families([alike] * families, rows, ceil(families / number)), number


def shares_prompts(workload: Workload) -> bool:
    """Do rows of a step share prompts, and does computing them once save enough?"""
    return _rows_alike(workload) > 1 and workload.prompt_tokens > LEAST_SAVING


def lay_out(row_tokens: int, scored: int, families: Sequence[int], prefix: int) -> Layout:
    """Return the layout of families with these row counts. A trunk is a whole row, a branch follows the prefix."""
    own = row_tokens - 1
    trunks, branches = [Grid(len(families), own)], [Grid(n - 1, own - prefix, prefix) for n in families if n > 1]
    grids = tuple(trunks + branches) if prefix else (Grid(sum(families), own),)
    rows = sum(families)
    return Layout(
        rows=rows,
        row_tokens=row_tokens,
        tokens=sum(grid.rows * grid.queries for grid in grids),
        scored=rows * scored,
        grids=grids,
    )


def _rows_alike(workload: Workload) -> int:
    """Return the rows with the same prompt in one optimizer step. Minibatches split the rows of a group."""
    if workload.data_kind == "prompts":
        return max(1, round(workload.group_size / workload.minibatches))
    return 2 if workload.data_kind == "pairs" else 1


def _families(families: list[int], rows: int, number: int) -> list[int]:
    """Return the rows of the first `number` families. The very last family may be incomplete."""
    return families[:number] if number < len(families) else [*families[:-1], rows - sum(families[:-1])]


# --- the arithmetic of a step, in words ------------------------------------------------------------------------------


Rows = Literal["answers", "pairs", "examples"]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One training step whose answers all have the maximum length: the upper limit of a step."""

    prompts: int
    per_prompt: int
    """Rows per prompt: the answers of the group, the two of a pair, or one example."""
    rows_are: Rows
    prompt_tokens: int
    answer_tokens: int
    minibatches: int = 1
    epochs: int = 1
    microbatch_tokens: int = 2048
    shares_prompts: bool = True
    """True if rows of one prompt in the same micro-batch compute the prompt once."""
    turns: Turns | None = None
    """The turns of an answer. None means a single turn."""
    drawn_tokens: int | None = None
    """Sampled tokens of an answer. None means all."""

    @property
    def rows(self) -> int:
        return self.prompts * self.per_prompt

    @property
    def updates(self) -> int:
        """Number of optimizer steps."""
        return self.minibatches * self.epochs

    @property
    def row_tokens(self) -> int:
        return self.prompt_tokens + self.answer_tokens

    @property
    def tokens(self) -> int:
        """The tokens of all rows, prompts included, as `num_tokens` in the metrics counts them."""
        return self.rows * self.row_tokens

    @property
    def rows_together(self) -> int:
        """Rows of one prompt in the same micro-batch, which share the prompt."""
        if not self.shares_prompts:
            return 1
        room = (self.microbatch_tokens - self.prompt_tokens) // max(1, self.answer_tokens)
        return max(1, min(self._rows_alike, room))

    @property
    def _rows_alike(self) -> int:
        """Rows of one prompt in the same optimizer step. Minibatches split the answers of a group, in parts of about
        equal size."""
        return max(1, round(self.per_prompt / self.minibatches)) if self.rows_are == "answers" else self.per_prompt

    @property
    def computed_tokens(self) -> int:
        """Tokens that go through the model in one pass over the rows. A shared prompt counts once."""
        return self._prompt_passes * self.prompt_tokens + self.rows * self.answer_tokens

    @property
    def _prompt_passes(self) -> int:
        return self.prompts * -(-self.per_prompt // self.rows_together)

    @property
    def scored_tokens(self) -> int:
        """Number of tokens whose log-probabilities are computed."""
        return self.rows * (self.answer_tokens if self.drawn_tokens is None else self.drawn_tokens)

    @property
    def microbatches(self) -> int:
        """Number of forward passes to process all rows of the step once."""
        shares = self.shares_prompts and self.prompt_tokens > LEAST_SAVING
        alike, prefix = (self._rows_alike, self.prompt_tokens) if shares and self._rows_alike > 1 else (1, 0)
        rows = -(-self.rows // self.minibatches)
        _, number = deal_out(rows, alike, self.row_tokens - 1, prefix, self.microbatch_tokens)
        return self.minibatches * number

    @property
    def context(self) -> float:
        """Mean number of tokens that a computed token attends to: those before it, and itself."""
        prompts, answers = self._prompt_passes * self.prompt_tokens, self.rows * self.answer_tokens
        seen = prompts * (self.prompt_tokens + 1) / 2
        seen += answers * (self.prompt_tokens + (self.answer_tokens + 1) / 2)
        return seen / max(1, prompts + answers)

    def sentence(self, steps: int | None = None) -> str:
        """Return the arithmetic of the step as a sentence that a person can check."""
        return f"{self._rows_in_words()}, {self._updates_in_words()}; {self._tokens_in_words(steps)}."

    @property
    def rows_in_words(self) -> str:
        return "trajectories" if self.turns is not None else self.rows_are

    def _turns_in_words(self) -> str:
        if self.turns is None:
            return ""
        given = f" with {self.turns.given:,} given between two" if self.turns.given else ""
        many = "s" * (self.turns.number > 1)
        return f": {self.turns.number:,} turn{many} of {self.turns.tokens:,}{given}"

    def _rows_in_words(self) -> str:
        if self.rows_are == "answers":
            each = f"{self.prompts:,} prompts x {self.per_prompt:,} completions"
            named = "answer" if self.turns is None else "trajectory"
            return (
                f"{each} = {self.rows:,} {self.rows_in_words}"
                if self.per_prompt > 1
                else f"{self.prompts:,} prompts, one {named} each"
            )
        if self.rows_are == "pairs":
            return f"{self.prompts:,} pairs x 2 answers = {self.rows:,} rows"
        return f"{self.rows:,} examples"

    def _updates_in_words(self) -> str:
        units, name = (self.prompts, "pairs") if self.rows_are == "pairs" else (self.rows, self.rows_in_words)
        each = -(-units // self.minibatches)
        about = "about " if units % self.minibatches else ""
        passes = f" ({self.minibatches} parts x {self.epochs} epochs)" if self.minibatches > 1 < self.epochs else ""
        if self.updates == 1:
            return "one update of all of them"
        return f"{self.updates:,} updates of {about}{each:,} {name} each{passes}"

    def _tokens_in_words(self, steps: int | None) -> str:
        many = "es" * (self.microbatches > 1)
        passes = f"{self.microbatches:,} micro-batch{many} of up to {self.microbatch_tokens:,} tokens"
        each = f"{self.prompt_tokens:,} + {self.answer_tokens:,} each{self._turns_in_words()}"
        most = f"at most {self.tokens:,} tokens ({each}) in {passes}"
        return most + (f", {self.tokens * steps:,} in {steps:,} steps" if steps is not None else "")
