"""The arithmetic of one step: how many rows, updates, micro-batches and tokens the settings come to.

P prompts, G rows of each, C tokens of an answer, L tokens of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from posttrain.lab.plan.layout import deal_out
from posttrain.models.packing import LEAST_SAVING

Rows = Literal["answers", "pairs", "examples"]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of training, with every answer as long as it may be: what a step is at most."""

    prompts: int
    per_prompt: int
    """Rows that go through the model for each prompt: the group of answers, the two of a pair, one example."""
    rows_are: Rows
    prompt_tokens: int
    answer_tokens: int
    minibatches: int = 1
    epochs: int = 1
    microbatch_tokens: int = 2048
    shares_prompts: bool = True
    """Rows of one prompt compute it once, as far as they are in one micro-batch."""

    @property
    def rows(self) -> int:
        return self.prompts * self.per_prompt

    @property
    def updates(self) -> int:
        """Optimizer steps."""
        return self.minibatches * self.epochs

    @property
    def row_tokens(self) -> int:
        return self.prompt_tokens + self.answer_tokens

    @property
    def tokens(self) -> int:
        """Of all rows, prompts included, as `num_tokens` in the metrics counts them."""
        return self.rows * self.row_tokens

    @property
    def rows_together(self) -> int:
        """Rows of one prompt that share a micro-batch, and with it their prompt."""
        if not self.shares_prompts:
            return 1
        room = (self.microbatch_tokens - self.prompt_tokens) // max(1, self.answer_tokens)
        dealt_out = max(1, self.per_prompt // self.minibatches) if self.rows_are == "answers" else self.per_prompt
        return max(1, min(dealt_out, room))

    @property
    def computed_tokens(self) -> int:
        """That go through the model in one pass over the rows: a shared prompt counts once."""
        return self._prompt_passes * self.prompt_tokens + self.rows * self.answer_tokens

    @property
    def _prompt_passes(self) -> int:
        return self.prompts * -(-self.per_prompt // self.rows_together)

    @property
    def scored_tokens(self) -> int:
        """Whose log-probabilities are asked for."""
        return self.rows * self.answer_tokens

    @property
    def microbatches(self) -> int:
        """Forward passes over all rows of the step once."""
        shares = self.shares_prompts and self.prompt_tokens > LEAST_SAVING
        dealt = round(self.per_prompt / self.minibatches) if self.rows_are == "answers" else self.per_prompt
        alike, prefix = (max(1, dealt), self.prompt_tokens) if shares and dealt > 1 else (1, 0)
        rows = -(-self.rows // self.minibatches)
        _, number = deal_out(rows, alike, self.row_tokens - 1, prefix, self.microbatch_tokens)
        return self.minibatches * number

    @property
    def microbatch_rows(self) -> int:
        return max(1, self.rows // self.microbatches)

    @property
    def context(self) -> float:
        """Tokens that a token attends to, on average over those computed: it sees what stands before it, and itself."""
        prompts, answers = self._prompt_passes * self.prompt_tokens, self.rows * self.answer_tokens
        seen = prompts * (self.prompt_tokens + 1) / 2
        seen += answers * (self.prompt_tokens + (self.answer_tokens + 1) / 2)
        return seen / max(1, prompts + answers)

    def sentence(self, steps: int | None = None) -> str:
        """The whole arithmetic, as a sentence that a person can check."""
        return f"{self._rows_in_words()}, {self._updates_in_words()}; {self._tokens_in_words(steps)}."

    def _rows_in_words(self) -> str:
        if self.rows_are == "answers":
            each = f"{self.prompts:,} prompts x {self.per_prompt:,} completions"
            return (
                f"{each} = {self.rows:,} answers"
                if self.per_prompt > 1
                else f"{self.prompts:,} prompts, one answer each"
            )
        if self.rows_are == "pairs":
            return f"{self.prompts:,} pairs x 2 answers = {self.rows:,} rows"
        return f"{self.rows:,} examples"

    def _updates_in_words(self) -> str:
        units, name = (self.prompts, "pairs") if self.rows_are == "pairs" else (self.rows, self.rows_are)
        each = -(-units // self.minibatches)
        about = "about " if units % self.minibatches else ""
        passes = f" ({self.minibatches} parts x {self.epochs} epochs)" if self.minibatches > 1 < self.epochs else ""
        if self.updates == 1:
            return "one update of all of them"
        return f"{self.updates:,} updates of {about}{each:,} {name} each{passes}"

    def _tokens_in_words(self, steps: int | None) -> str:
        many = "es" * (self.microbatches > 1)
        passes = f"{self.microbatches:,} micro-batch{many} of up to {self.microbatch_tokens:,} tokens"
        most = f"at most {self.tokens:,} tokens ({self.prompt_tokens:,} + {self.answer_tokens:,} each) in {passes}"
        return most + (f", {self.tokens * steps:,} in {steps:,} steps" if steps is not None else "")
