"""Training on preference pairs: where those of a step come from."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from posttrain.data.collate import collate_examples
from posttrain.data.order import rows_for_step
from posttrain.experience.feed import Fed
from posttrain.experience.references import References
from posttrain.train.guards import Guards, name_pairs
from posttrain.types import Batch, Example, Pair

if TYPE_CHECKING:
    from posttrain.config import RunConfig


class PairFeed:
    """Preference pairs of a dataset, `prompts_per_step` of them at a time."""

    samples = False

    def __init__(
        self, config: RunConfig, pairs: Sequence[Pair], *, pad_id: int, references: References | None = None
    ) -> None:
        """`references` are of the answers in the order of `Sides`."""
        self.config, self.pairs, self.pad_id, self.references = config, pairs, pad_id, references

    def take(self, step: int, version: int) -> Fed:
        rows = rows_for_step(self.config.seed, step, self.config.train.prompts_per_step, len(self.pairs))
        pairs = [self.pairs[row] for row in rows]
        examples = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
        batch = pairs_batch(pairs, self.pad_id)
        if self.references is not None:
            sides = Sides(self.pairs).as_batched(rows)
            batch = replace(batch, ref_logprobs_BT=self.references.beside(sides, batch.completion_mask_BT))
        return Fed(experience=batch, version=version, examples=examples)

    def inspect(self, fed: Fed, step: int, guards: Guards) -> list[str]:
        guards.non_finite.watch(name_pairs(fed.examples))
        return []

    def metrics(self, fed: Fed) -> dict[str, float]:
        return {}

    def describe(self) -> str:
        return f"{len(self.pairs)} pairs"

    def named_rows(self) -> Iterable[tuple[str, Example]]:
        for place in range(len(self.pairs)):
            pair = self.pairs[place]
            yield from (("chosen", pair.chosen), ("rejected", pair.rejected))


class Sides(Sequence[Example]):
    """The answers of pairs, one by one: chosen and rejected of the first pair, then of the second.

    Whoever runs a model on them part by part thus meets the two answers to a prompt together, and computes it once.
    """

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return 2 * len(self.pairs)

    def __getitem__(self, place):  # type: ignore[no-untyped-def,override]
        pair, is_rejected = divmod(range(len(self))[place], 2)  # IndexError past the end, where iteration stops
        return self.pairs[pair].rejected if is_rejected else self.pairs[pair].chosen

    def of(self, rows: Sequence[int]) -> Sequence[int]:
        """Where the sides of these pairs stand, pair by pair."""
        if rows == range(len(self.pairs)):
            return range(len(self))
        return array("q", (2 * row + side for row in rows for side in (0, 1)))

    def as_batched(self, rows: Sequence[int]) -> Sequence[int]:
        """The same in the order of `Batch.from_pairs`: the chosen ones, then the rejected ones."""
        return array("q", (2 * row + side for side in (0, 1) for row in rows))


def pairs_batch(pairs: Sequence[Pair], pad_id: int) -> Batch:
    """Chosen rows, then rejected ones; with margins where every row of the data has one."""
    tokens, mask_BT = collate_examples([p.chosen for p in pairs] + [p.rejected for p in pairs], pad_id)
    margins = [pair.margin for pair in pairs if pair.margin is not None]
    known = len(margins) == len(pairs)
    return Batch.from_pairs(mask_BT, margins_N=torch.tensor(margins) if known else None, tokens=tokens)
