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
    """Groups in the order of their prompts, and the time that they took."""

    groups: Sequence[Group]
    sample_seconds: float = 0.0
    """Seconds in the sampler."""
    score_seconds: float = 0.0
    """Seconds of work of the rewards, summed over parallel calls."""
    wait_seconds: float = 0.0
    """Seconds of waiting for rewards: their work, less what ran while other completions were sampled."""
    waits: Waits | None = None
    """Waiting times for environments and tools; None if there are none."""

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
    """A sampler together with rewards. `generate` is a pure function of the prompts, the seeds and the weights."""

    sampler: Answers
    rewards: RewardSet | None

    def generate(
        self, prompts: Sequence[Prompt], sampling: SamplingSettings, *, group_size: int, seeds: Sequence[int]
    ) -> Generated:
        """Return `group_size` completions of each prompt, sampled with the prompt's own seed."""
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
        """Yield (index of the prompt, index in its group, completion) in the sampler's order."""
        for seed in dict.fromkeys(seeds):
            places = [place for place, own in enumerate(seeds) if own == seed]
            chosen = [prompts[place] for place in places]
            for turn, number, completion in self.sampler.each(chosen, sampling, group_size=group_size, seed=seed):
                yield places[turn], number, completion


class Drawn(NamedTuple):
    """Completions `[P][G]` in the order of their prompts, with their scores and times."""

    completions: list[list[Completion]]
    scores: Scores | None
    """The scores; None without rewards."""
    sample_seconds: float
    """Seconds in the sampler."""
    wait_seconds: float
    """Seconds of waiting for rewards: their work, less what ran while other completions were sampled."""


def draw(
    stream: Iterator[tuple[int, int, Completion]],
    prompts: Sequence[Prompt],
    rewards: RewardSet | None,
    *,
    group_size: int,
) -> Drawn:
    """Take all completions of these prompts from a sampler (`Sampler.each`), and score each one as it arrives.

    The result is the same as if scoring began after sampling, whatever either of them takes.
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
    """Return the seed of a training step's completions in round `number`; evaluations use other streams."""
    return (seed * 1_000_003 + step) * 1_009 + turn + (number << 48)


def turns(indexes: Sequence[int]) -> list[int]:
    """Return, for each place, how many earlier places have the same index.

    >>> turns([7, 3, 7])
    [0, 0, 1]
    """
    seen: Counter[int] = Counter()
    found: list[int] = []
    for index in indexes:
        found.append(seen[index])
        seen[index] += 1
    return found
