"""Training on rated answers: the scale of their ratings, and where those of a step come from."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from posttrain.data.collate import collate_examples
from posttrain.data.order import rows_for_step
from posttrain.errors import DataError
from posttrain.experience.feed import Fed
from posttrain.train.guards import Guards, name_examples
from posttrain.types import Batch, Example, RatedExample

if TYPE_CHECKING:
    from posttrain.config import RunConfig


class Scale(NamedTuple):
    """What is learned of a rating y: (y - mean) / std."""

    mean: float = 0.0
    std: float = 1.0


def scale_of(ratings: Sequence[float], needs: Collection[str]) -> Scale:
    """The scale that an algorithm asks for; DataError for ratings that do not suit it."""
    if "unit_interval" in needs and (outside := [y for y in ratings if not 0 <= y <= 1]):
        raise DataError(
            given=f"{len(outside)} of {len(ratings)} ratings are not between 0 and 1; the first is {outside[0]:g}",
            allowed="ratings from 0 to 1, as regress = logistic learns their logits",
            fix="Set algorithm.regress = standardized, or divide the ratings by the largest that can be given.",
        )
    if len(set(ratings)) < 2:
        raise DataError(
            given=f"all {len(ratings)} ratings are {ratings[0]:g}",
            allowed="ratings that differ",
            fix="There is nothing to learn from them; look at the column score.",
        )
    return Scale(statistics.fmean(ratings), statistics.pstdev(ratings)) if "standardized" in needs else Scale()


class RatingFeed:
    """Rated answers of a dataset, `prompts_per_step` of them at a time."""

    samples = False

    def __init__(self, config: RunConfig, rows: Sequence[RatedExample], scale: Scale, *, pad_id: int) -> None:
        self.config, self.rows, self.scale, self.pad_id = config, rows, scale, pad_id

    def take(self, step: int, version: int) -> Fed:
        places = rows_for_step(self.config.seed, step, self.config.train.prompts_per_step, len(self.rows))
        rows = [self.rows[place] for place in places]
        return Fed(
            experience=ratings_batch(rows, self.scale, self.pad_id),
            version=version,
            examples=[row.example for row in rows],
        )

    def inspect(self, fed: Fed, step: int, guards: Guards) -> list[str]:
        guards.non_finite.watch(name_examples(fed.examples))
        return []

    def metrics(self, fed: Fed) -> dict[str, float]:
        return {}

    def named_rows(self) -> Iterable[tuple[str, Example]]:
        rows = (self.rows[place] for place in range(len(self.rows)))
        return (("rated answer", row.example) for row in rows)

    def describe(self) -> str:
        return f"{len(self.rows)} rated answers"


def ratings_batch(rows: Sequence[RatedExample], scale: Scale, pad_id: int) -> Batch:
    """Targets are ratings on the scale, computed in float64 and held in float32."""
    tokens, mask_BT = collate_examples([row.example for row in rows], pad_id)
    targets_B = torch.tensor([(row.score - scale.mean) / scale.std for row in rows], dtype=torch.float32)
    return Batch.from_ratings(mask_BT, targets_B, tokens=tokens)
