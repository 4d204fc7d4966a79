"""Where experience comes from: sampled and scored through a queue, or read from a dataset.

`feed.take(step, version)` gives what `train_step` is fed with. Which rows a step gets is a pure function of the seed
and the step, so a resumed run continues with the row that the killed one would have read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch

from posttrain.config import RunConfig
from posttrain.data.collate import collate, collate_examples, pad_rows
from posttrain.data.order import rows_for_step
from posttrain.engines.sampler import Sampler, SamplingSettings
from posttrain.experience.generate import draw
from posttrain.experience.group import Judged, Rollout
from posttrain.experience.group_queue import ExperienceQueue
from posttrain.experience.selection import Collect, OneRound, Refill, refill_metrics
from posttrain.rewards import RewardSet
from posttrain.rewards.judge import judge_metrics
from posttrain.train.guards import Guards, name_completions, name_examples
from posttrain.train.metrics import (
    MetricLog,
    gate_metrics,
    greedy_metrics,
    length_metrics,
    reason_metrics,
    rollout_metrics,
    staleness_metrics,
)
from posttrain.types import Batch, Completion, Example, Experience, Metrics, Prompt


@dataclass(frozen=True, kw_only=True)
class Fed:
    """What one step learns from, and where it came from."""

    experience: Experience | Batch
    version: int
    """The policy version that learns from it."""
    rollout: Rollout | None = None
    """None for a dataset."""
    examples: Sequence[Example] = ()

    @property
    def seconds(self) -> dict[str, float]:
        """Where the time has gone before the first gradient; nothing for a dataset.

        time/sample             in the sampler
        time/score              seconds of work in all calls of rewards, most of it while others were sampled
        time/wait_for_rewards   for which the step stood still for rewards
        """
        if self.rollout is None:
            return {}
        parts = self.rollout.parts
        return {
            "time/sample": sum(part.sample_seconds for part in parts),
            "time/score": sum(part.score_seconds for part in parts),
            "time/wait_for_rewards": sum(part.wait_seconds for part in parts),
        }

    @property
    def num_tokens(self) -> int:
        """Prompt and completion tokens of all rows, those included that were sampled and are not trained."""
        if self.rollout is not None:
            return self.rollout.num_tokens
        return sum(len(example.input_ids) for example in self.examples)


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

    def named_rows(self) -> Iterable[tuple[str, Example]]:
        """What it draws from, in the order of the data, each row by what it is: an answer, a prompt, a chosen one."""
        ...


class SampledFeed:
    """prompts -> sampler -> rewards -> queue -> experience.

    With `train.max_staleness` 0 the queue is filled and emptied within the step: synchronous training. What was sampled
    by weights that were published up to `train.publish_every` - 1 steps ago is then as fresh as it can be.
    """

    samples = True

    def __init__(
        self,
        config: RunConfig,
        prompts: Sequence[Prompt],
        sampler: Sampler,
        rewards: RewardSet | None,
        *,
        pad_id: int,
        needs: Collection[str] = (),
        learns_from_rewards: bool = True,
    ) -> None:
        """`needs` and `learns_from_rewards` are what the algorithm declares."""
        self.config, self.prompts, self.sampler, self.rewards, self.pad_id = config, prompts, sampler, rewards, pad_id
        self.learns_from_rewards = learns_from_rewards
        refills, self.greedy = "signal" in needs, "greedy_reward" in needs
        self.collect: Collect = (Refill if refills else OneRound)(config, len(prompts))
        self.collected_metrics: Callable[..., Metrics] = refill_metrics if refills else lambda collected: {}
        self.queue: ExperienceQueue[Rollout] = ExperienceQueue(
            max_staleness=config.train.max_staleness + config.train.publish_every - 1
        )

    def take(self, step: int, version: int) -> Fed:
        rollout = self.queue.take_or_produce(version, lambda: self.produce(step))
        experience = replace(self.to_experience(rollout), version=version)
        return Fed(experience=experience, version=version, rollout=rollout)

    def inspect(self, fed: Fed, step: int, guards: Guards) -> list[str]:
        rollout, experience = fed.rollout, fed.experience
        assert rollout is not None
        assert isinstance(experience, Experience)
        trained, groups = rollout.trained, rollout.sampled.groups
        guards.non_finite.watch(name_completions(trained.prompts, trained.groups))
        if not self.learns_from_rewards:
            return guards.observe_lengths(step, groups)
        return guards.observe(step, experience, groups, rollout.failures)

    def metrics(self, fed: Fed) -> dict[str, float]:
        """Of everything that was sampled, trained or not; staleness of what is trained."""
        assert fed.rollout is not None
        rollout, sampled, log = fed.rollout, fed.rollout.sampled, MetricLog()
        if sampled.scores is None:
            log.add(length_metrics(sampled.groups))
        else:
            log.add(rollout_metrics(sampled.rewards_PG, sampled.scored_PG, sampled.groups, sampled.scores.parts))
            log.add(reason_metrics(sampled.scores.verdicts))
            log.add(gate_metrics(sampled.scores.is_open))
        if rollout.greedy is not None:
            log.add(greedy_metrics(rollout.greedy.rewards_PG, rollout.greedy.scored_PG))
        log.add(judge_metrics(rollout.judgements))
        log.add(self.collected_metrics(rollout.collected))
        log.add(staleness_metrics(rollout.trained.completions, fed.version))
        return log.reduce() | {"staleness/dropped": float(self.queue.dropped)}

    def describe(self) -> str:
        return f"{len(self.prompts)} prompts"

    def named_rows(self) -> Iterable[tuple[str, Example]]:
        for p in self.prompts:
            yield "prompt", Example(index=p.index, input_ids=p.ids, completion_mask=(False,) * len(p.ids))

    def produce(self, step: int) -> Rollout:
        """Sample and score what the step needs, with one policy version."""
        version = self.sampler.version
        collected = self.collect(step, partial(self._draw, step))
        trained = [collected.sampled.prompts[place] for place in collected.trained]
        return Rollout(
            step=step,
            version=version,
            collected=collected,
            greedy=self._draw_greedy(trained, step) if self.greedy else None,
        )

    def to_experience(self, rollout: Rollout) -> Experience:
        """Token ids and per-token numbers into `[B, T]`; rewards into `[P, G]`."""
        trained, greedy = rollout.trained, rollout.greedy
        experience = sampled_experience(trained, self.pad_id)
        if not self.learns_from_rewards or trained.scores is None or self.rewards is None:
            return experience
        parts = trained.scores.counted.values()
        rewards_KPG = [[[float("nan") if r is None else r for r in group] for group in part] for part in parts]
        return replace(
            experience,
            rewards_PG=trained.rewards_PG,
            scored_PG=trained.scored_PG,
            rewards_KPG=torch.tensor(rewards_KPG, dtype=torch.float32),
            reward_weights_K=torch.tensor([c.weight for c in self.rewards.components], dtype=torch.float32),
            greedy_rewards_P=None if greedy is None else greedy.rewards_PG[:, 0],
        )

    def _draw(self, step: int, rows: Sequence[int], number: int) -> Judged:
        """G completions of each prompt, for round `number` of the step.

        A prompt that the round holds twice draws from another stream the second time.
        """
        prompts = [self.prompts[row] for row in rows]
        seeds = [sampling_seed(self.config.seed, step, turn, number) for turn in turns([p.index for p in prompts])]
        return self._judge(prompts, self.config.sampling, self.config.sampling.group_size, seeds)

    def _draw_greedy(self, prompts: Sequence[Prompt], step: int) -> Judged:
        """The most likely completion of each prompt."""
        greedy = self.config.sampling.model_copy(update={"temperature": 0.0})
        return self._judge(prompts, greedy, 1, [sampling_seed(self.config.seed, step, 0)] * len(prompts))

    def _judge(
        self, prompts: Sequence[Prompt], sampling: SamplingSettings, group_size: int, seeds: Sequence[int]
    ) -> Judged:
        """Sample, and score what is there meanwhile; `seeds` are those of the prompts."""
        drawn = draw(self._each(prompts, sampling, group_size, seeds), prompts, self.rewards, group_size=group_size)
        return Judged(
            prompts=prompts,
            groups=drawn.groups,
            scores=drawn.scores,
            sample_seconds=drawn.sample_seconds,
            score_seconds=0.0 if drawn.scores is None else sum(drawn.scores.seconds.values()),
            wait_seconds=drawn.wait_seconds,
        )

    def _each(
        self, prompts: Sequence[Prompt], sampling: SamplingSettings, group_size: int, seeds: Sequence[int]
    ) -> Iterator[tuple[int, int, Completion]]:
        """(place, number, completion), each prompt's drawn with its own seed."""
        for seed in dict.fromkeys(seeds):
            places = [place for place, own in enumerate(seeds) if own == seed]
            chosen = [prompts[place] for place in places]
            for turn, number, completion in self.sampler.each(chosen, sampling, group_size=group_size, seed=seed):
                yield places[turn], number, completion


class DatasetFeed:
    """Examples of a supervised dataset, `prompts_per_step` rows at a time."""

    samples = False

    def __init__(self, config: RunConfig, examples: Sequence[Example], *, pad_id: int) -> None:
        self.config, self.examples, self.pad_id = config, examples, pad_id

    def take(self, step: int, version: int) -> Fed:
        rows = rows_for_step(self.config.seed, step, self.config.train.prompts_per_step, len(self.examples))
        examples = [self.examples[row] for row in rows]
        return Fed(experience=examples_batch(examples, self.pad_id), version=version, examples=examples)

    def inspect(self, fed: Fed, step: int, guards: Guards) -> list[str]:
        guards.non_finite.watch(name_examples(fed.examples))
        return []

    def metrics(self, fed: Fed) -> dict[str, float]:
        return {}

    def describe(self) -> str:
        return f"{len(self.examples)} examples"

    def named_rows(self) -> Iterable[tuple[str, Example]]:
        return (("answer", self.examples[place]) for place in range(len(self.examples)))


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


def sampled_experience(judged: Judged, pad_id: int) -> Experience:
    """What the sampler says about its completions; every one counts as scored, with reward 0."""
    rows = [(p.ids, c.ids) for p, group in zip(judged.prompts, judged.groups, strict=True) for c in group]
    completions = judged.completions
    tokens, completion_mask_BT = collate(rows, pad_id)
    truncated_PG = torch.tensor([[c.truncated for c in group] for group in judged.groups], dtype=torch.bool)
    return Experience.from_rewards(
        torch.zeros(truncated_PG.shape),
        completion_mask_BT=completion_mask_BT,
        sampling_logprobs_BT=pad_rows([c.logprobs for c in completions], completion_mask_BT, dtype=torch.float32),
        versions_BT=pad_rows([c.versions for c in completions], completion_mask_BT, dtype=torch.long),
        truncated_PG=truncated_PG,
        tokens=tokens,
    )


def examples_batch(examples: Sequence[Example], pad_id: int) -> Batch:
    """Supervised rows as a batch."""
    tokens, mask_BT = collate_examples(examples, pad_id)
    return Batch(completion_mask_BT=mask_BT, groups_B=torch.arange(len(examples)), tokens=tokens)
