"""One reward component: the function that scores the rows of a step, and its arguments. `making.py` makes it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from posttrain.errors import ConfigError
from posttrain.rewards.calls import Outcome, Runner, Signature, run_call
from posttrain.rewards.gates import GATE_STATE, Gate
from posttrain.rewards.load import Target
from posttrain.rewards.missing import missing_column
from posttrain.rewards.pool import Job
from posttrain.rewards.verifiers import Builtin

if TYPE_CHECKING:  # the records import torch, which a reward worker does not need
    from posttrain.config import CheckConfig, JudgeConfig, RewardConfig
    from posttrain.config.scorers import GateConfig
    from posttrain.rewards.judge import Judge
    from posttrain.rewards.model import ModelReward
    from posttrain.types import Completion, Prompt

GIVEN_NAMES = frozenset(
    {
        *("prompt", "prompts", "completion", "completions", "completion_ids"),
        *("truncated", "groups", "environment_reward", "environment_token_rewards"),
    }
)
"""Parameters that the rollout fills. A column with such a name is not passed on."""


Unit = Literal["row", "group", "all"]
"""One completion, all completions of one prompt, or all completions of the step."""


@dataclass(frozen=True, kw_only=True)
class Reward:
    """A reward declared in Python code. Give exactly one of `name`, `function`, `model` and `judge`."""

    name: str | None = None
    """Name of a built-in verifier, or of an entry point in the group `posttrain.rewards`."""
    function: str | Callable[..., Any] | None = None
    """Your own function: `path/to/file.py:name`, `package.module.name`, or any callable."""
    model: str | None = None
    """A reward model: its folder, the folder of the run that trained it, or its name on the Hub."""
    judge: JudgeConfig | Mapping[str, Any] | None = None
    """A language model that judges: a `JudgeConfig`, or its settings."""
    weight: float = 1.0
    """Factor in the sum. A component of weight 0 is only computed and logged."""
    timeout: float = 10.0
    """Timeout of a call, in seconds. A call is for the whole batch, or for one completion if the function takes one."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of every call."""
    label: str | None = None
    """The reward's name in metrics and messages; by default the name of the function."""
    gate: GateConfig | Gate | str | Mapping[str, Any] | None = None
    """Label of the reward that has to reach 1 (or another `at_least`) for this reward to count: see `gates.py`."""


RewardLike: TypeAlias = "RewardConfig | CheckConfig | Reward"
"""A reward declared in a config or in Python code."""


class Row(NamedTuple):
    """One completion to score."""

    prompt: Prompt
    completion: Completion
    number: int
    """Index of the completion among those of its prompt, from 0."""
    group_size: int
    group: int = 0
    """Index of the group among those that are scored together, from 0."""


@dataclass(frozen=True, kw_only=True)
class Component:
    """A reward whose function has been found and whose signature has been read.

    It runs in a worker process (`target`), in its own runner (`runner`: a thread or a sandbox), or in this process
    (`model`, `judge`).
    """

    label: str
    weight: float
    timeout: float
    settings: Mapping[str, Any]
    signature: Signature
    target: Target | None = None
    runner: Runner | None = None
    model: ModelReward | None = None
    judge: Judge | None = None
    builtin: Builtin | None = None
    gate: Gate | None = None

    @property
    def receives_gate(self) -> bool:
        """Does the function ask for the state of its gate? Then the function decides itself what the state means."""
        return self.gate is not None and GATE_STATE in self.signature.named

    @property
    def reads_one_place(self) -> bool:
        """Do the settings say from which place the answer is read?"""
        return self.builtin is not None and "answer_from" in self.settings

    @property
    def unit(self) -> Unit:
        """The completions that have to be complete before the component is called.

        A list function gets all rows in one call, unless it declares that it does not compare prompts with each other.
        Models and async functions in this process get all of their work at the same time.
        """
        if self.judge is not None:
            return "group" if self.judge.is_remote else "all"
        if self.signature.batch:
            return "group" if self.signature.by_group else "all"
        in_this_process = self.model is not None or (self.runner is not None and self.signature.is_async)
        return "all" if in_this_process else "row"

    def columns(self, available: Collection[str], what: str = "") -> list[str]:
        """The columns that this function receives. ConfigError if it needs a column that does not exist.

        `what` names the rows in the error.
        """
        available = sorted(set(available) - self._given_names)
        for name in self.signature.required:
            if name not in available and name not in self._given_names and name not in self.settings:
                raise self._missing(name, available, what)
        wanted = available if self.signature.takes_any else set(available) & set(self.signature.named)
        return [name for name in available if name in wanted and name not in self.settings]

    @property
    def gold_columns(self) -> list[str]:
        """The columns with the gold answer: the required ones and those that a built-in declares in addition."""
        names = self.signature.required + (self.builtin.golds if self.builtin else ())
        return [name for name in names if name not in self._given_names | self.settings.keys()]

    @property
    def _given_names(self) -> frozenset[str]:
        return GIVEN_NAMES | {GATE_STATE} if self.receives_gate else GIVEN_NAMES

    def _missing(self, name: str, available: Sequence[str], what: str) -> ConfigError:
        ways = (
            ["set data.answer to the column that holds the gold answer"]
            if name == "answer"
            else ["rename the parameter", "give it a default", f"give its value in the reward's settings.{name}"]
        )
        return missing_column(f'reward "{self.label}" asks for', name, available, what=what, ways=ways)

    def calls(
        self, rows: Sequence[Row], columns: Mapping[str, Sequence[Any]], is_open: Sequence[bool | None] = ()
    ) -> list[dict[str, Any]]:
        """The keyword arguments of each call: one call for all rows, or one per row.

        For a column that a row lacks, a function of one row gets its own default, or None if it has no default.
        `is_open`: the state of the gate for each row, if the component asks for it.
        """
        if self.model is not None:
            return [{"prompt": row.prompt, "completion": row.completion} for row in rows]
        if self.judge is not None:
            return [
                {"prompt": r.prompt, "completion": r.completion, "group": r.group, "number": r.number} for r in rows
            ]
        if self.signature.batch:
            given = self._given(rows, "prompts", "completions") | self._gate_state(is_open)
            return [given | {name: list(columns[name]) for name in self.columns(columns)}]
        given = self._given(rows, "prompt", "completion") | self._gate_state(is_open)
        wanted = self.columns(columns)
        own = set(wanted) & set(self.signature.optional)
        given |= {name: columns[name] for name in wanted}
        return [
            {name: values[n] for name, values in given.items() if name not in own or name in row.prompt.columns}
            for n, row in enumerate(rows)
        ]

    def decide(self, call: Mapping[str, Any]) -> Outcome | None:
        """The outcome of a built-in that decides immediately, in this process. None if a worker has to decide."""
        if self.builtin is None or self.builtin.quick is None:
            return None
        outcome = run_call(self.builtin.quick, call, self.settings)
        undecided = outcome.kind == "value" and outcome.value is None and outcome.verdict is None
        return None if undecided else outcome

    def trial(self) -> dict[str, Any]:
        """The arguments of a trial call for one short completion."""
        one: dict[str, Any] = {"completion": "\\boxed{0}", "completion_ids": [0], "truncated": False, "groups": 0}
        one |= {"environment_reward": None, "environment_token_rewards": None, GATE_STATE: True}
        if self.signature.batch:
            one = {"completions": [one.pop("completion")]} | {name: [value] for name, value in one.items()}
        return {name: value for name, value in one.items() if name in self.signature.named}

    def job(self, calls: Sequence[Mapping[str, Any]]) -> Job:
        """The calls as a job for the pool."""
        assert self.target is not None
        return Job(
            target=self.target,
            calls=calls,
            settings=self.settings,
            timeout=self.timeout,
            is_async=self.signature.is_async,
        )

    def _given(self, rows: Sequence[Row], prompt: str, completion: str) -> dict[str, list[Any]]:
        """The arguments that the rollout provides and the function asks for, under the names of its form.

        Like in TRL, they are strings if the dataset holds text and lists of messages if it holds chat. A built-in gets
        strings.
        """
        makers: dict[str, Callable[[Row], Any]] = {
            prompt: _prompt,
            completion: _completion if self.builtin is None else lambda row: row.completion.text,
            "completion_ids": self._ids,
            "truncated": lambda row: row.completion.truncated,
            "groups": lambda row: row.group,
            "environment_reward": lambda row: row.completion.episode and row.completion.episode.total_reward,
            "environment_token_rewards": lambda row: _token_rewards(row.completion),
        }
        asked = set(self.signature.named)
        if self.signature.takes_any:
            asked |= {prompt, completion}
        return {name: [make(row) for row in rows] for name, make in makers.items() if name in asked}

    def _ids(self, row: Row) -> list[int]:
        """The ids that the policy sampled. A function with one number per token gets all ids, tool output included."""
        return list(row.completion.ids if self.signature.per_token else row.completion.drawn_ids)

    def _gate_state(self, is_open: Sequence[bool | None]) -> dict[str, list[Any]]:
        return {GATE_STATE: list(is_open)} if self.receives_gate else {}


def _is_chat(row: Row) -> bool:
    """Whether the dataset's row holds messages. A text that was wrapped as a user turn counts as text."""
    return row.prompt.messages is not None and row.prompt.plain is None


def _prompt(row: Row) -> Any:
    if _is_chat(row):
        return list(row.prompt.messages or ())
    return row.prompt.text if row.prompt.plain is None else row.prompt.plain


def _completion(row: Row) -> Any:
    """The completion as an argument. After several turns it is all messages after the prompt, or the last text."""
    if _is_chat(row) and row.completion.episode is not None:
        return [dict(message) for message in row.completion.episode.messages]
    return [{"role": "assistant", "content": row.completion.text}] if _is_chat(row) else row.completion.text


def _token_rewards(completion: Completion) -> list[float] | None:
    """The environment's rewards per token. Each turn's reward is on its last token, and the final reward is on the last
    token of all. None if no turn except the last has a reward."""
    episode, ends = completion.episode, completion.turn_ends
    if episode is None or not any(reward is not None for reward in episode.turn_rewards[:-1]):
        return None
    numbers = [0.0] * len(completion.ids)
    for place, reward in zip(ends, episode.turn_rewards, strict=True):
        numbers[place] = reward or 0.0
    numbers[ends[-1]] += episode.reward or 0.0
    return numbers
