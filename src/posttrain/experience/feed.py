"""The source of a step's experience: completions that are sampled and scored, or given data.

`feed.take(step, version)` returns the data for `train_step`. The rows of a step are a pure function of the seed and the
step, so a resumed run continues with the row that the interrupted run would have read.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import torch

from posttrain.config import RunConfig
from posttrain.data.collate import collate
from posttrain.data.dataset import Dataset
from posttrain.data.order import rows_for_step
from posttrain.data.strata import strata_of
from posttrain.data.stream import StreamedRecords
from posttrain.engines.sampler import Answers
from posttrain.episodes.episodes import Waits
from posttrain.errors import ConfigError
from posttrain.experience.assemble import experience_of
from posttrain.experience.generate import Generated, Generator, sampling_seed, turns
from posttrain.experience.group import Group, GroupQueue
from posttrain.experience.metrics import sampled_metrics
from posttrain.experience.references import used_rows
from posttrain.experience.selection import DynamicSampling, EveryGroup, Select
from posttrain.rewards import RewardSet, Scores
from posttrain.rewards.judge import Judgement
from posttrain.rewards.scores import Failure
from posttrain.types import Batch, Example, Experience, Metrics, Prompt

LOOKED_AT = 1_000
"""Number of rows in which the longest ones are searched, if rows are tokenised only when they are read."""


@dataclass(frozen=True, kw_only=True)
class RowName:
    """The name of a row of the step in errors, and its content, which is kept as evidence."""

    name: str
    content: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StepData:
    """The data of one step, with its groups, metrics and times."""

    experience: Experience | Batch
    version: int
    """The policy version that learns from it."""
    groups: Sequence[Group] = ()
    """The trained groups, in the order of the batch; empty for given data."""
    discarded: Sequence[Group] = ()
    """Groups that were sampled and are not trained."""
    greedy: Sequence[Group] = ()
    """One greedy completion of each trained prompt, if the algorithm needs its reward."""
    names: Sequence[RowName] = ()
    """The names of the rows of the experience."""
    num_tokens: int = 0
    """Prompt and completion tokens of all rows, including rows that were sampled and are not trained."""
    metrics: Metrics = field(default_factory=dict)
    """Metrics of everything that was sampled, trained or not."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds before the first gradient, by activity; empty for given data.

    time/sample             seconds in the sampler
    time/score              work in all calls of rewards, most of it while other completions were sampled
    time/wait_for_rewards   time for which the step waited for rewards
    time/wait_for_tools     time for which it waited for environments and tools, if there are any
    time/in_tools           time between requests to them and their replies, mostly while others were sampled
    """

    @property
    def sampled(self) -> list[Group]:
        """All groups but the greedy ones."""
        return [*self.groups, *self.discarded]

    @property
    def scores(self) -> list[Scores]:
        """The scores of all scored groups, including the greedy completions."""
        return [group.scores for group in (*self.sampled, *self.greedy) if group.scores is not None]

    @property
    def judgements(self) -> list[Judgement]:
        """The judges' verdicts on all sampled completions."""
        return [judgement for scores in self.scores for judgement in scores.judgements]

    @property
    def failures(self) -> list[Failure]:
        """The failures of the rewards and of environments."""
        return [failure for scores in self.scores for failure in scores.failures]


def sampled_step(
    groups: Sequence[Group],
    *,
    version: int,
    pad_id: int,
    weights: Sequence[float] | None,
    max_lag: int | None = None,
    discarded: Sequence[Group] = (),
    greedy: Sequence[Group] = (),
    sampled: Sequence[Group] | None = None,
) -> StepData:
    """Return the data that policy version `version` learns from these groups.

    `weights` are the rewards' weights, None if nothing is learned from rewards. `sampled` lists all groups in the order
    of sampling, if that differs from the order of the batch.
    """
    experience = experience_of(groups, greedy, weights, pad_id=pad_id, version=version, max_lag=max_lag)
    sampled = [*groups, *discarded] if sampled is None else sampled
    return StepData(
        experience=experience,
        version=version,
        groups=groups,
        discarded=discarded,
        greedy=greedy,
        names=name_completions(groups),
        num_tokens=sum(group.num_tokens for group in (*sampled, *greedy)),
        metrics=sampled_metrics(sampled, groups, greedy, version),
    )


class Feed(Protocol):
    samples: bool
    """Whether it samples completions."""

    @property
    def rows(self) -> Sequence[Any]:
        """The records of its data."""
        ...

    def take(self, step: int, version: int) -> StepData:
        """Return the data of step `step`, at policy version `version`."""
        ...

    def describe(self) -> str: ...

    def named_rows(self) -> Iterable[tuple[str, Example]]:
        """Yield its rows in the order of the data, each with its kind: an answer, a prompt, a chosen answer."""
        ...

    def longest(self) -> Batch:
        """Return a batch of the longest rows possible, to test whether memory suffices."""
        ...

    def state(self) -> dict[str, Any]:
        """Return the part of a checkpoint, as plain JSON, that makes the next step the same after a resume."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None: ...


def tool_seconds(waits: Waits | None) -> dict[str, float]:
    """Return the times of waiting for environments and tools; empty if there are none."""
    return {} if waits is None else {"time/wait_for_tools": waits.blocked, "time/in_tools": waits.asked}


class PromptFeed:
    """Prompts of the data whose completions are sampled, in this process or elsewhere."""

    samples = True

    def __init__(
        self, config: RunConfig, prompts: Sequence[Prompt], *, pad_id: int, context_length: int | None = None
    ) -> None:
        """`context_length` is the model's context length in tokens; None: no limit."""
        self.config, self.rows, self.pad_id, self.context_length = config, prompts, pad_id, context_length

    def describe(self) -> str:
        return f"{len(self.rows)} prompts"

    def longest(self) -> Batch:
        """Return the longest prompts, with full-length completions that differ early, so that they share little."""
        train, sampling, limit = self.config.train, self.config.sampling, self._most_tokens()
        group_size = min(sampling.group_size, 1 + train.microbatch_tokens // limit)
        count = min(train.prompts_per_step, 1 + train.microbatch_tokens // (limit * group_size))
        rows = self.rows[:LOOKED_AT] if isinstance(self.rows, StreamedRecords) else self.rows
        prompts = heapq.nlargest(count, rows, key=lambda prompt: len(prompt.ids))
        answers = [[g >> place & 1 for place in range(limit)] for g in range(group_size)]
        sequences = [(prompt.ids, answer[: self._room(prompt)]) for prompt in prompts for answer in answers]
        tokens, mask_BT = collate(sequences, self.pad_id)
        return Batch(completion_mask_BT=mask_BT, groups_B=torch.arange(len(mask_BT)), tokens=tokens)

    def _most_tokens(self) -> int:
        """Return the maximum tokens after a prompt."""
        most = self.config.longest_completion
        if self.context_length is None or not self.config.has_turns:
            return most
        return min(most, self.context_length)

    def _room(self, prompt: Prompt) -> int | None:
        """Return the maximum tokens after this prompt; None: no limit."""
        if self.context_length is None or not self.config.has_turns:
            return None
        return max(1, self.context_length - len(prompt.ids))

    def named_rows(self) -> Iterable[tuple[str, Example]]:
        for p in self.rows:
            yield "prompt", Example(index=p.index, input_ids=p.ids, completion_mask=(False,) * len(p.ids))


class SampledFeed(PromptFeed):
    """prompts -> generate -> select -> queue -> assemble.

    With `train.max_staleness` 0 the queue is filled and emptied within the step: synchronous training. With
    `train.publish_every` above 1, weights that were published up to `publish_every` - 1 steps ago count as current.
    """

    def __init__(
        self,
        config: RunConfig,
        prompts: Sequence[Prompt],
        sampler: Answers,
        rewards: RewardSet | None,
        *,
        pad_id: int,
        needs: Collection[str] = (),
        learns_from_rewards: bool = True,
    ) -> None:
        """The algorithm declares `needs` and `learns_from_rewards`."""
        super().__init__(config, prompts, pad_id=pad_id, context_length=getattr(sampler, "context_length", None))
        self.generator = Generator(sampler=sampler, rewards=rewards)
        strata = strata_of(prompts, config.data.stratify)
        self.select: Select = (DynamicSampling if "signal" in needs else EveryGroup)(config, len(prompts), strata)
        self.queue = GroupQueue(config.train.max_lag)
        self.needs_greedy = "greedy_reward" in needs
        self.weights = [one.weight for one in rewards.components] if rewards and learns_from_rewards else None

    def take(self, step: int, version: int) -> StepData:
        selected = self.select(step, partial(self.generate, step))
        for group in selected.trained:
            self.queue.put(group)
        groups = self.queue.take(len(selected.trained), version)
        greedy = self.generate_greedy(groups, step) if self.needs_greedy else Generated(groups=())
        whole = selected.generated + greedy
        data = sampled_step(
            groups,
            version=version,
            pad_id=self.pad_id,
            weights=self.weights,
            discarded=selected.discarded,
            greedy=greedy.groups,
            sampled=selected.generated.groups,
        )
        return replace(
            data,
            metrics=data.metrics | selected.metrics(),
            seconds={
                "time/sample": whole.sample_seconds,
                "time/score": whole.score_seconds,
                "time/wait_for_rewards": whole.wait_seconds,
                **tool_seconds(whole.waits),
            },
        )

    def generate(self, step: int, rows: Sequence[int], number: int) -> Generated:
        """Return G completions of each prompt, for round `number` of the step.

        If a prompt occurs twice in the round, its second occurrence uses another random stream.
        """
        prompts, sampling = [self.rows[row] for row in rows], self.config.sampling
        seeds = [sampling_seed(self.config.seed, step, turn, number) for turn in turns([p.index for p in prompts])]
        return self.generator.generate(prompts, sampling, group_size=sampling.group_size, seeds=seeds)

    def generate_greedy(self, groups: Sequence[Group], step: int) -> Generated:
        """Return the greedy completion of each prompt."""
        sampling = self.config.sampling.model_copy(update={"temperature": 0.0})
        seeds = [sampling_seed(self.config.seed, step, 0)] * len(groups)
        return self.generator.generate([group.prompt for group in groups], sampling, group_size=1, seeds=seeds)

    def state(self) -> dict[str, Any]:
        return {"queue": self.queue.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the queue. Raises ConfigError for a checkpoint of engines that were ahead, because they may have
        trained groups out of the order of the data."""
        if "engines" in state:
            refuse_a_lead(state["engines"]["controller"], self.config.train.prompts_per_step)
        waiting = state.get("queue", [])
        self.queue.load_state(waiting, {prompt.index: prompt for prompt in self.rows} if waiting else {})


class DatasetFeed:
    """Records of given data of any kind, `prompts_per_step` of them per step."""

    samples = False

    def __init__(self, config: RunConfig, dataset: Dataset[Any]) -> None:
        self.config, self.dataset = config, dataset

    @property
    def rows(self) -> Sequence[Any]:
        return self.dataset.records

    def take(self, step: int, version: int) -> StepData:
        rows = rows_for_step(self.config.seed, step, self.config.train.prompts_per_step, len(self.dataset))
        examples = self.dataset.examples(rows)
        return StepData(
            experience=self.dataset.batch(rows),
            version=version,
            names=name_examples(examples, self.dataset.type.sides),
            num_tokens=sum(len(example.input_ids) for example in examples),
        )

    def longest(self) -> Batch:
        """Return the longest records that the run uses."""
        train, records = self.config.train, self.dataset.records
        taken = used_rows(self.config, len(records))
        rows = heapq.nlargest(
            train.prompts_per_step,
            taken[:LOOKED_AT] if isinstance(records, StreamedRecords) else taken,
            key=lambda row: sum(len(example.input_ids) for _, example in self.dataset.type.sequences(records[row])),
        )
        return (self.dataset.collate or self.dataset.type.batch)([records[row] for row in rows], self.dataset.pad_id)

    def describe(self) -> str:
        return self.dataset.describe()

    def named_rows(self) -> Iterable[tuple[str, Example]]:
        return self.dataset.named_rows()

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore nothing: the step alone determines the next records."""


def refuse_a_lead(engines: Mapping[str, Any], prompts_per_step: int) -> None:
    """Raise ConfigError unless the trained groups are the first ones in the order of the data. If engines replace a
    group, which had no signal or was given up, all later ones move."""
    open_groups = [*engines["finished"], *(group["group"] for group in engines["in_flight"])]
    trained = engines["version"] * prompts_per_step
    early = [number for number in open_groups if number < trained]
    if early or engines["finished"]:
        raise ConfigError(
            given=f"rollout.engines = 0, but {len(open_groups)} groups of the checkpoint were waiting or running: "
            "engines had sampled ahead",
            allowed="rollout.engines of at least 1 for this run",
            fix="Set rollout.engines = 1; train.run_ahead = 0 then ends the lead once these are trained.",
        )
    if (replaced := engines["next_group"] - trained - len(open_groups)) > 0:
        raise ConfigError(
            given=f"rollout.engines = 0, but engines have replaced {replaced} groups, without signal or given up, by "
            "later prompts: the steps would train prompts again",
            allowed="rollout.engines of at least 1 for this run",
            fix="Set rollout.engines = 1.",
        )


def name_completions(groups: Sequence[Group]) -> list[RowName]:
    """Return names for the rows p * G + g of an experience."""
    return [
        RowName(
            name=f"prompt {group.prompt.index}, completion {number} of {len(group.completions)}",
            content={
                "prompt_index": group.prompt.index,
                "completion_number": number,
                "prompt": group.prompt.text,
                "completion": completion.text,
                "completion_ids": completion.ids,
            },
        )
        for group in groups
        for number, completion in enumerate(group.completions, start=1)
    ]


def name_examples(examples: Sequence[Example], sides: int = 1) -> list[RowName]:
    """Return names for the rows of given data. For pairs (two sides): all chosen rows, then all rejected ones."""
    if sides == 1:
        return [RowName(name=f"row {e.index} of the data", content={"index": e.index}) for e in examples]
    names = [side for side in ("chosen", "rejected") for _ in range(len(examples) // 2)]
    return [
        RowName(name=f"row {e.index} of the data, {side}", content={"index": e.index, "side": side})
        for e, side in zip(examples, names, strict=True)
    ]
