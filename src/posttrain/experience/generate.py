"""From prompts to groups: each completion is scored while the sampler goes on with the others."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from posttrain.engines.sampler import Answers, SamplingSettings
from posttrain.episodes.episodes import Episodes, Waits
from posttrain.experience.group import Group, groups_of
from posttrain.rewards import RewardSet, Scores
from posttrain.types import Completion, Prompt


@dataclass(frozen=True, kw_only=True)
class Generated:
    """Groups in the order of their prompts, and where the time went."""

    groups: Sequence[Group]
    sample_seconds: float = 0.0
    """In the sampler."""
    score_seconds: float = 0.0
    """Work of the rewards, summed over all that did it side by side."""
    wait_seconds: float = 0.0
    """For rewards: their work less what of it went on while others were sampled."""
    waits: Waits | None = None
    """For environments and tools; None where there are none."""

    def __add__(self, later: Generated) -> Generated:
        return Generated(
            groups=[*self.groups, *later.groups],
            sample_seconds=self.sample_seconds + later.sample_seconds,
            score_seconds=self.score_seconds + later.score_seconds,
            wait_seconds=self.wait_seconds + later.wait_seconds,
            waits=self.waits if later.waits is None else later.waits + self.waits,
        )


@dataclass(frozen=True, kw_only=True)
class Generator:
    """Sampler and rewards together. `generate` is a pure function of the prompts, the seeds and the weights."""

    sampler: Answers
    rewards: RewardSet | None

    def generate(
        self, prompts: Sequence[Prompt], sampling: SamplingSettings, *, group_size: int, seeds: Sequence[int]
    ) -> Generated:
        """`group_size` completions of each prompt, each prompt's drawn with its own seed."""
        each = self._each(prompts, sampling, group_size, seeds)
        drawn = draw(each, prompts, self.rewards, group_size=group_size)
        waits = self.sampler.take_waits() if isinstance(self.sampler, Episodes) else None
        return Generated(
            groups=groups_of(prompts, drawn.completions, drawn.scores),
            sample_seconds=drawn.sample_seconds - (0.0 if waits is None else waits.blocked),
            score_seconds=0.0 if drawn.scores is None else sum(drawn.scores.seconds.values()),
            wait_seconds=drawn.wait_seconds,
            waits=waits,
        )

    def _each(
        self, prompts: Sequence[Prompt], sampling: SamplingSettings, group_size: int, seeds: Sequence[int]
    ) -> Iterator[tuple[int, int, Completion]]:
        """(place, number, completion), as the sampler gives them."""
        for seed in dict.fromkeys(seeds):
            places = [place for place, own in enumerate(seeds) if own == seed]
            chosen = [prompts[place] for place in places]
            for turn, number, completion in self.sampler.each(chosen, sampling, group_size=group_size, seed=seed):
                yield places[turn], number, completion


class Drawn(NamedTuple):
    """Completions `[P][G]`, in the order of their prompts."""

    completions: list[list[Completion]]
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

    Completions and scores are those of sampling first and scoring then, whatever takes how long.
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
    completions = [[group[number] for number in range(group_size)] for group in groups]
    return Drawn(completions, scores, in_sampler, time.perf_counter() - started - in_sampler)


def sampling_seed(seed: int, step: int, turn: int, number: int = 0) -> int:
    """The seed of a training step's completions in round `number`; evaluations use other streams."""
    return (seed * 1_000_003 + step) * 1_009 + turn + (number << 48)


def turns(indexes: Sequence[int]) -> list[int]:
    """Which occurrence of its index each place is, counted from 0.

    >>> turns([7, 3, 7])
    [0, 0, 1]
    """
    seen: Counter[int] = Counter()
    found: list[int] = []
    for index in indexes:
        found.append(seen[index])
        seen[index] += 1
    return found
