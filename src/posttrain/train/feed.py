"""Where experience comes from: sampled and scored through a queue, or read from a dataset.

`feed.take(step, version)` gives what `train_step` is fed with. Which rows a step gets is a pure function of the seed
and the step, so a resumed run continues with the row that the killed one would have read.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from posttrain.config import RunConfig
from posttrain.data.collate import collate, collate_examples, pad_rows
from posttrain.data.order import rows_for_step
from posttrain.rewards import RewardSet, Scores
from posttrain.rollout.queue import ExperienceQueue
from posttrain.rollout.sampler import Sampler
from posttrain.train.guards import Guards, name_completions, name_examples
from posttrain.train.metrics import MetricLog, rollout_metrics
from posttrain.types import Batch, Completion, Example, Experience, Prompt


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """What one round of sampling and scoring produced: P prompts with G completions each."""

    step: int
    """The training step whose prompts these are."""
    version: int
    """The policy version that sampled them."""
    prompts: Sequence[Prompt]
    groups: Sequence[Sequence[Completion]]
    scores: Scores
    sample_seconds: float
    score_seconds: float


@dataclass(frozen=True, kw_only=True)
class Fed:
    """What one step learns from, and where it came from."""

    experience: Experience | Batch
    rollout: Rollout | None = None
    """None for a dataset."""
    examples: Sequence[Example] = ()

    @property
    def seconds(self) -> dict[str, float]:
        if self.rollout is None:
            return {}
        return {"time/sample": self.rollout.sample_seconds, "time/score": self.rollout.score_seconds}


class Feed(Protocol):
    samples: bool
    """Does it sample completions?"""

    def take(self, step: int, version: int) -> Fed:
        """What step `step` learns from, at policy version `version`."""
        ...

    def inspect(self, fed: Fed, step: int, guards: Guards) -> list[str]:
        """Let the guards look at it before anything is learned; returns warnings, or a guard raises."""
        ...

    def metrics(self, fed: Fed) -> dict[str, float]: ...

    def describe(self) -> str: ...


class SampledFeed:
    """prompts -> sampler -> rewards -> queue -> experience.

    With `train.max_staleness` 0 the queue is filled and emptied within the step: synchronous training.
    """

    samples = True

    def __init__(
        self, config: RunConfig, prompts: Sequence[Prompt], sampler: Sampler, rewards: RewardSet, *, pad_id: int
    ) -> None:
        self.config, self.prompts, self.sampler, self.rewards, self.pad_id = config, prompts, sampler, rewards, pad_id
        self.queue: ExperienceQueue[Rollout] = ExperienceQueue(max_staleness=config.train.max_staleness)

    def take(self, step: int, version: int) -> Fed:
        rollout = self.queue.take_or_produce(version, lambda: self.produce(step))
        return Fed(experience=to_experience(rollout, self.pad_id), rollout=rollout)

    def inspect(self, fed: Fed, step: int, guards: Guards) -> list[str]:
        rollout, experience = fed.rollout, fed.experience
        assert rollout is not None
        assert isinstance(experience, Experience)
        guards.non_finite.watch(name_completions(rollout.prompts, rollout.groups))
        failures = [f"{failure}\n{failure.traceback}" for failure in rollout.scores.failures]
        return guards.observe(step, experience, rollout.groups, failures)

    def metrics(self, fed: Fed) -> dict[str, float]:
        assert fed.rollout is not None
        assert isinstance(fed.experience, Experience)
        log = MetricLog()
        log.add(rollout_metrics(fed.experience, fed.rollout.groups, fed.rollout.scores.parts))
        return log.reduce() | {"staleness/dropped": float(self.queue.dropped)}

    def describe(self) -> str:
        return f"{len(self.prompts)} prompts"

    def produce(self, step: int) -> Rollout:
        config = self.config
        rows = rows_for_step(config.seed, step, config.train.prompts_per_step, len(self.prompts))
        prompts = [self.prompts[row] for row in rows]
        started = time.perf_counter()
        groups = self._sample(prompts, step)
        sampled = time.perf_counter()
        scores = self.rewards.score(prompts, groups)
        return Rollout(
            step=step,
            version=self.sampler.version,
            prompts=prompts,
            groups=groups,
            scores=scores,
            sample_seconds=sampled - started,
            score_seconds=time.perf_counter() - sampled,
        )

    def _sample(self, prompts: Sequence[Prompt], step: int) -> list[list[Completion]]:
        """G completions per prompt. A prompt that the step holds twice draws from another stream the second time."""
        groups: list[list[Completion]] = [[] for _ in prompts]
        for turn, places in enumerate(turns([prompt.index for prompt in prompts])):
            sampled = self.sampler.generate(
                [prompts[place] for place in places],
                self.config.sampling,
                group_size=self.config.sampling.group_size,
                seed=sampling_seed(self.config.seed, step, turn),
            )
            for place, group in zip(places, sampled, strict=True):
                groups[place] = group
        return groups


class DatasetFeed:
    """Examples of a supervised dataset, `prompts_per_step` rows at a time."""

    samples = False

    def __init__(self, config: RunConfig, examples: Sequence[Example], *, pad_id: int) -> None:
        self.config, self.examples, self.pad_id = config, examples, pad_id

    def take(self, step: int, version: int) -> Fed:
        rows = rows_for_step(self.config.seed, step, self.config.train.prompts_per_step, len(self.examples))
        examples = [self.examples[row] for row in rows]
        return Fed(experience=examples_batch(examples, self.pad_id), examples=examples)

    def inspect(self, fed: Fed, step: int, guards: Guards) -> list[str]:
        guards.non_finite.watch(name_examples(fed.examples))
        return []

    def metrics(self, fed: Fed) -> dict[str, float]:
        return {}

    def describe(self) -> str:
        return f"{len(self.examples)} examples"


def sampling_seed(seed: int, step: int, turn: int) -> int:
    """The seed of a training step's completions; evaluations use other streams."""
    return (seed * 1_000_003 + step) * 1_009 + turn


def turns(indexes: Sequence[int]) -> list[list[int]]:
    """The places of all first occurrences, then those of all second ones, and so on.

    >>> turns([7, 3, 7])
    [[0, 1], [2]]
    """
    seen: Counter[int] = Counter()
    places: list[list[int]] = []
    for place, index in enumerate(indexes):
        if seen[index] == len(places):
            places.append([])
        places[seen[index]].append(place)
        seen[index] += 1
    return places


def to_experience(rollout: Rollout, pad_id: int) -> Experience:
    """Token ids and per-token numbers into `[B, T]`; rewards into `[P, G]`."""
    rows = [(p.ids, c.ids) for p, group in zip(rollout.prompts, rollout.groups, strict=True) for c in group]
    completions = [c for group in rollout.groups for c in group]
    tokens, completion_mask_BT = collate(rows, pad_id)
    rewards_KPG = [
        [[float("nan") if r is None else r for r in group] for group in part] for part in rollout.scores.parts.values()
    ]
    return Experience.from_rewards(
        torch.tensor(rollout.scores.rewards_PG, dtype=torch.float32),
        completion_mask_BT=completion_mask_BT,
        sampling_logprobs_BT=pad_rows([c.logprobs for c in completions], completion_mask_BT, dtype=torch.float32),
        versions_BT=pad_rows([c.versions for c in completions], completion_mask_BT, dtype=torch.long),
        rewards_KPG=torch.tensor(rewards_KPG, dtype=torch.float32),
        scored_PG=torch.tensor(rollout.scores.scored_PG, dtype=torch.bool),
        truncated_PG=torch.tensor([[c.truncated for c in group] for group in rollout.groups], dtype=torch.bool),
        tokens=tokens,
    )


def examples_batch(examples: Sequence[Example], pad_id: int) -> Batch:
    """Supervised rows as a batch."""
    tokens, mask_BT = collate_examples(examples, pad_id)
    return Batch(completion_mask_BT=mask_BT, groups_B=torch.arange(len(examples)), tokens=tokens)
