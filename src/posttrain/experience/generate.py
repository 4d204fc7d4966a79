"""Completions and their rewards: each is scored while the sampler goes on with the others."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from posttrain.rewards import RewardSet, Scores
    from posttrain.types import Completion, Prompt


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """P groups, in the order of their prompts."""

    groups: list[list[Completion]]
    scores: Scores | None
    """None where there is no reward."""
    sample_seconds: float
    """In the sampler."""
    wait_seconds: float
    """For rewards: their work less what of it went on while others were sampled."""


def draw(
    stream: Iterator[tuple[int, int, Completion]],
    prompts: Sequence[Prompt],
    rewards: RewardSet | None,
    *,
    group_size: int,
) -> Drawn:
    """Take all completions of these prompts from a sampler (`Sampler.each`) and have each scored meanwhile.

    Groups and scores are those of sampling first and scoring then, whatever takes how long.
    """
    started, in_sampler = time.perf_counter(), 0.0
    groups: list[dict[int, Completion]] = [{} for _ in prompts]
    scores = None

    def arriving() -> Iterator[tuple[int, int, Completion]]:
        nonlocal in_sampler
        while True:
            asked = time.perf_counter()
            found = next(stream, None)
            in_sampler += time.perf_counter() - asked
            if found is None:
                return
            place, number, completion = found
            groups[place][number] = completion
            yield found

    if rewards is None:
        for _ in arriving():
            pass
    else:
        with rewards.open(prompts) as scoring:
            for place, number, completion in arriving():
                scoring.add_one(place, number, completion, group_size=group_size)
            scores = scoring.result()
    return Drawn(
        groups=[[group[number] for number in range(group_size)] for group in groups],
        scores=scores,
        sample_seconds=in_sampler,
        wait_seconds=time.perf_counter() - started - in_sampler,
    )
