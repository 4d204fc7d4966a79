"""Where a step's experience comes from: sampled and scored, or read from given data.

`feed.take(step, version)` gives what `train_step` learns from. Which rows a step gets is a pure function of the seed
and the step, so a resumed run continues with the row that the killed one would have read.
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
from posttrain.types import Batch, Example, Experience, Metrics, Prompt

LOOKED_AT = 1_000
"""Rows among which the longest are looked for, where rows are tokenised when they are taken."""


@dataclass(frozen=True, kw_only=True)
class RowName:
    """The name of a row of the step in errors, and the content that is kept as evidence."""

    name: str
    content: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StepData:
    """The data of one step, and its origin."""

    experience: Experience | Batch
    version: int
    """The policy version that learns from it."""
    groups: Sequence[Group] = ()
    """The groups that are trained, in the order of the batch; none where the data is given."""
    discarded: Sequence[Group] = ()
    """Sampled and not trained."""
    greedy: Sequence[Group] = ()
    """One greedy completion of each trained prompt, where the algorithm needs its reward."""
    names: Sequence[RowName] = ()
    """The names of the rows of the experience."""
    num_tokens: int = 0
    """Prompt and completion tokens of all rows, those included that were sampled and are not trained."""
    metrics: Metrics = field(default_factory=dict)
    """The metrics of everything that was sampled, trained or not."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Where the time has gone before the first gradient; nothing where the data is given.

    time/sample             in the sampler
    time/score              seconds of work in all calls of rewards, most of it while others were sampled
    time/wait_for_rewards   for which the step stood still for rewards
    time/wait_for_tools     for which it stood still for environments and tools, where there are some
    time/in_tools           seconds from requests to them to their replies, most of it while others were sampled
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
        """The judges' verdicts on everything that was drawn."""
        return [judgement for scores in self.scores for judgement in scores.judgements]

    @property
    def failures(self) -> list[str]:
        """The failures of the rewards, each with its traceback."""
        return [f"{failure}\n{failure.traceback}" for scores in self.scores for failure in scores.failures]


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
    """The data that policy version `version` learns from these groups.

    `weights` are those of the rewards, None where nothing is learned from them; `sampled` is everything in the order in
    which it was sampled, where that is another order.
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
    """Does it sample completions?"""

    @property
    def rows(self) -> Sequence[Any]:
        """The records of the data that it draws from."""
        ...

    def take(self, step: int, version: int) -> StepData:
        """The data of step `step`, at policy version `version`."""
        ...

    def describe(self) -> str: ...

    def named_rows(self) -> Iterable[tuple[str, Example]]:
        """What it draws from, in the order of the data, each row by what it is: an answer, a prompt, a chosen one."""
        ...

    def longest(self) -> Batch:
        """Tokens of a step as long as one can be, to see whether memory suffices for it."""
        ...

    def state(self) -> dict[str, Any]:
        """Plain JSON: what has to be in a checkpoint so that the next step is the same."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None: ...


def tool_seconds(waits: Waits | None) -> dict[str, float]:
    """Nothing where nobody waits for environments and tools."""
    return {} if waits is None else {"time/wait_for_tools": waits.blocked, "time/in_tools": waits.asked}


class PromptFeed:
    """Prompts of the data; completions of them are sampled, here or elsewhere."""

    samples = True

    def __init__(
        self, config: RunConfig, prompts: Sequence[Prompt], *, pad_id: int, context_length: int | None = None
    ) -> None:
        """`context_length` is that of the model; None without a limit."""
        self.config, self.rows, self.pad_id, self.context_length = config, prompts, pad_id, context_length

    def describe(self) -> str:
        return f"{len(self.rows)} prompts"

    def longest(self) -> Batch:
        """The longest prompts, and completions up to the limit that differ early on, so that they share no more."""
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
        """Behind a prompt."""
        most = self.config.longest_completion
        if self.context_length is None or not self.config.has_turns:
            return most
        return min(most, self.context_length)

    def _room(self, prompt: Prompt) -> int | None:
        """For what stands behind it; None: for anything."""
        if self.context_length is None or not self.config.has_turns:
            return None
        return max(1, self.context_length - len(prompt.ids))

    def named_rows(self) -> Iterable[tuple[str, Example]]:
        for p in self.rows:
            yield "prompt", Example(index=p.index, input_ids=p.ids, completion_mask=(False,) * len(p.ids))


class SampledFeed(PromptFeed):
    """prompts -> generate -> select -> queue -> assemble.

    With `train.max_staleness` 0 the queue is filled and emptied within the step: synchronous training. What was sampled
    by weights that were published up to `train.publish_every` - 1 steps ago is then as fresh as it can be.
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
        """`needs` and `learns_from_rewards` are what the algorithm declares."""
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
        """G completions of each prompt, for round `number` of the step.

        A prompt that the round holds twice draws from another stream the second time.
        """
        prompts, sampling = [self.rows[row] for row in rows], self.config.sampling
        seeds = [sampling_seed(self.config.seed, step, turn, number) for turn in turns([p.index for p in prompts])]
        return self.generator.generate(prompts, sampling, group_size=sampling.group_size, seeds=seeds)

    def generate_greedy(self, groups: Sequence[Group], step: int) -> Generated:
        """The most likely completion of each prompt."""
        sampling = self.config.sampling.model_copy(update={"temperature": 0.0})
        seeds = [sampling_seed(self.config.seed, step, 0)] * len(groups)
        return self.generator.generate([group.prompt for group in groups], sampling, group_size=1, seeds=seeds)

    def state(self) -> dict[str, Any]:
        return {"queue": self.queue.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Raises ConfigError for a checkpoint of engines that were ahead: what they left out or took first is not the
        order of the data."""
        if "engines" in state:
            refuse_a_lead(state["engines"]["controller"], self.config.train.prompts_per_step)
        waiting = state.get("queue", [])
        self.queue.load_state(waiting, {prompt.index: prompt for prompt in self.rows} if waiting else {})


class DatasetFeed:
    """Records of given data of any kind, `prompts_per_step` of them at a time."""

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
        """The longest records that the run takes."""
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
        """Which records come next follows from the step."""


def refuse_a_lead(engines: Mapping[str, Any], prompts_per_step: int) -> None:
    """ConfigError unless the groups that were trained are the first ones, in the order of the data."""
    open_groups = [*engines["finished"], *(group["group"] for group in engines["in_flight"])]
    early = [number for number in open_groups if number < engines["version"] * prompts_per_step]
    if early or engines["finished"]:
        raise ConfigError(
            given=f"rollout.engines = 0, but {len(open_groups)} groups wait in the checkpoint or were under way, which "
            "engines had sampled ahead",
            allowed="rollout.engines of at least 1 for this run",
            fix="Set rollout.engines = 1; train.run_ahead = 0 then ends the lead once these are trained.",
        )


def name_completions(groups: Sequence[Group]) -> list[RowName]:
    """Names for the rows p * G + g of an experience."""
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
    """Names for the rows of given data; of pairs (two sides) all chosen rows, then all rejected ones."""
    if sides == 1:
        return [RowName(name=f"row {e.index} of the data", content={"index": e.index}) for e in examples]
    names = [side for side in ("chosen", "rejected") for _ in range(len(examples) // 2)]
    return [
        RowName(name=f"row {e.index} of the data, {side}", content={"index": e.index, "side": side})
        for e, side in zip(examples, names, strict=True)
    ]
