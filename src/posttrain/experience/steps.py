"""Training on labelled steps: where those of an optimizer step come from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from posttrain.data.collate import collate_examples, pad_rows
from posttrain.data.order import rows_for_step
from posttrain.experience.feed import Fed
from posttrain.train.guards import Guards, name_examples
from posttrain.types import Batch, Example, StepExample

if TYPE_CHECKING:
    from posttrain.config import RunConfig


class StepFeed:
    """Answers with labelled steps of a dataset, `prompts_per_step` answers at a time."""

    samples = False

    def __init__(self, config: RunConfig, rows: Sequence[StepExample], *, pad_id: int) -> None:
        self.config, self.rows, self.pad_id = config, rows, pad_id

    def take(self, step: int, version: int) -> Fed:
        places = rows_for_step(self.config.seed, step, self.config.train.prompts_per_step, len(self.rows))
        rows = [self.rows[place] for place in places]
        return Fed(experience=steps_batch(rows, self.pad_id), version=version, examples=[row.example for row in rows])

    def inspect(self, fed: Fed, step: int, guards: Guards) -> list[str]:
        guards.non_finite.watch(name_examples(fed.examples))
        return []

    def metrics(self, fed: Fed) -> dict[str, float]:
        return {}

    def named_rows(self) -> Iterable[tuple[str, Example]]:
        rows = (self.rows[place] for place in range(len(self.rows)))
        return (("judged steps", row.example) for row in rows)

    def describe(self) -> str:
        return f"{len(self.rows)} answers with {sum(len(row.labels) for row in self.rows)} labelled steps"


def steps_batch(rows: Sequence[StepExample], pad_id: int) -> Batch:
    """The label of each step stands at its last token."""
    tokens, mask_BT = collate_examples([row.example for row in rows], pad_id)
    targets_BT = pad_rows([row.labels for row in rows], mask_BT, dtype=torch.float32)
    return Batch.from_steps(mask_BT, targets_BT, tokens=tokens)
