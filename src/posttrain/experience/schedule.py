"""The prompt of each group, and the seed of its completions: a pure function of the group's number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from posttrain.data.order import Strata, rows_for_step
from posttrain.experience.generate import sampling_seed, turns
from posttrain.types import Prompt


class Planned(NamedTuple):
    prompt: Prompt
    seed: int


@dataclass(frozen=True)
class Schedule:
    """Group n is prompt n % P of step n // P + 1, as in synchronous training."""

    seed: int
    prompts: Sequence[Prompt]
    prompts_per_step: int
    strata: Strata | None = None

    def __call__(self, number: int) -> Planned:
        """Return the prompt and the seed of a group.

        Groups that replace others without signal shift the later ones: a group may be trained in another step than the
        one that its seed is derived from. Each prompt still occurs once in each pass over the data."""
        step, place = 1 + number // self.prompts_per_step, number % self.prompts_per_step
        row, turn = self._of_step(step)[place]
        return Planned(self.prompts[row], sampling_seed(self.seed, step, turn))

    def _of_step(self, step: int) -> list[tuple[int, int]]:
        """Return (row of the data, number of earlier occurrences in this step) for each place of the step."""
        rows = rows_for_step(self.seed, step, self.prompts_per_step, len(self.prompts), self.strata)
        return list(zip(rows, turns(rows), strict=True))
