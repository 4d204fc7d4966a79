"""The partner of each row: another prompt's answer, to which KTO's reference point compares this row's prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from posttrain.data.collate import collate_examples
from posttrain.data.order import rows_for_step
from posttrain.errors import DataError
from posttrain.types import Batch, Example, LabelledExample, Mismatched

if TYPE_CHECKING:
    from posttrain.config import RunConfig

LOOKED_AT = 16
"""Rows that are searched one by one before the prompts of all rows are read."""


class Partners:
    """Assigns each row a partner: the next row, in an order that the seed shuffles, that has another prompt and whose
    answer fits after this row's prompt within `max_length` tokens. Partners stay the same throughout the run."""

    def __init__(self, rows: Sequence[LabelledExample], *, seed: int, max_length: int) -> None:
        self.rows, self.max_length = rows, max_length
        self.order_N = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
        self.place_in_order_N = torch.empty_like(self.order_N)
        self.place_in_order_N[self.order_N] = torch.arange(len(rows))

    def of(self, place: int) -> int | None:
        """Return the row's partner, or None if no other row has a suitable answer."""
        prompt, begin = prompt_of(self.rows[place].example), int(self.place_in_order_N[place])
        for step in range(begin + 1, begin + 1 + min(len(self.rows) - 1, LOOKED_AT)):
            other = int(self.order_N[step % len(self.rows)])
            example = self.rows[other].example
            room = self.max_length - len(prompt)
            if prompt_of(example) != prompt and _answer_length(example) <= room:
                return other
        return None if len(self.rows) - 1 <= LOOKED_AT else self._among_all(prompt, begin)

    def _among_all(self, prompt: tuple[int, ...], begin: int) -> int | None:
        prompts_N, lengths_N = self._prompts_and_lengths
        suits_N = (prompts_N != hash(prompt)) & (lengths_N <= self.max_length - len(prompt))
        found = suits_N.roll(-begin).nonzero()
        return int(self.order_N[(begin + int(found[0])) % len(self.rows)]) if len(found) else None

    @cached_property
    def _prompts_and_lengths(self) -> tuple[Tensor, Tensor]:
        """The hash of each prompt and the length of its answer, in the shuffled order; sixteen bytes a row."""
        prompts_N, lengths_N = torch.empty_like(self.order_N), torch.empty_like(self.order_N)
        for place, row in enumerate(self.rows):
            at = self.place_in_order_N[place]
            prompts_N[at], lengths_N[at] = hash(prompt_of(row.example)), _answer_length(row.example)
        return prompts_N, lengths_N

    def notes(self, config: RunConfig, used: Sequence[int]) -> list[str]:
        """Return a note on used rows without a partner. DataError if an update could consist of such rows alone."""
        alone = {place for place in used if self.of(place) is None}
        if not alone:
            return []
        given = (
            f"for {len(alone)} of the {len(used)} rows that the run uses, no other prompt's answer fits into "
            f"{self.max_length} tokens with their own prompt"
        )
        per_step, size = config.train.prompts_per_step, len(self.rows)
        smallest = per_step // config.train.minibatches
        for step in range(1, config.train.steps + 1):
            places = rows_for_step(config.seed, step, per_step, size)
            if sum(place in alone for place in places) >= smallest:
                raise DataError(
                    given=f"{given}, and an update of step {step} could hold nothing else: {config.algorithm.name} "
                    "would have no reference point",
                    allowed="in every update, at least one row whose prompt can be combined with another "
                    "prompt's answer",
                    fix="Use rows with different prompts, or shorter rows, or raise train.prompts_per_step.",
                )
        return [f"{given}; the reference point is the mean over the others"]


class MismatchedAnswers(Sequence[Example]):
    """Each prompt with its partner's answer. A row without a partner has no trained tokens."""

    def __init__(self, rows: Sequence[LabelledExample], *, seed: int, max_length: int) -> None:
        self.rows, self.partners = rows, Partners(rows, seed=seed, max_length=max_length)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place):  # type: ignore[no-untyped-def,override]
        place = range(len(self))[place]  # IndexError past the end, which ends iteration
        own, partner = self.rows[place].example, self.partners.of(place)
        prompt, mask = prompt_of(own), ()
        ids = prompt
        if partner is not None:
            other = self.rows[partner].example
            begin = len(prompt_of(other))
            ids, mask = (*prompt, *other.input_ids[begin:]), other.completion_mask[begin:]
        return Example(index=own.index, input_ids=ids, completion_mask=(False,) * len(prompt) + mask)


@dataclass(frozen=True)
class AddMismatched:
    """Adds each prompt's mismatched answer and its reference log-probabilities to a batch of labelled answers."""

    answers: MismatchedAnswers
    ref_logprobs: Callable[[Sequence[int], Tensor], Tensor]
    """Maps row indices and their mask to log-probabilities `[B, T]`."""
    pad_id: int

    def __call__(self, batch: Batch, rows: Sequence[int]) -> Batch:
        tokens, mask_BT = collate_examples([self.answers[row] for row in rows], self.pad_id)
        other = Mismatched(tokens=tokens, completion_mask_BT=mask_BT, ref_logprobs_BT=self.ref_logprobs(rows, mask_BT))
        return replace(batch, mismatched=other)


def prompt_of(example: Example) -> tuple[int, ...]:
    """Return the tokens before the first trained token."""
    return example.input_ids[: example.completion_mask.index(True)]


def _answer_length(example: Example) -> int:
    return len(example.input_ids) - example.completion_mask.index(True)
