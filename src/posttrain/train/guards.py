"""Guards: each detects one way in which a run would end with exit code 0 and a wrong model, and names the reason.

`observe` looks at one step. It returns a warning the first time something is wrong, and raises a `GuardStop` when
further training is pointless. A checkpoint holds the counts of the guards, so a resumed run stops at the same step as
an uninterrupted one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from posttrain.episodes.tools import ENOUGH_CALLS, UNKNOWN, calls_of
from posttrain.errors import GuardStop, NonFiniteError, RewardError
from posttrain.experience.feed import RowName, StepData
from posttrain.experience.group import Group, completions_of
from posttrain.functional.baselines import has_signal
from posttrain.functional.turns import number_of_turns, sum_over_turns, turns_of
from posttrain.rewards.scores import ENVIRONMENT, OF_ENVIRONMENT, Failure
from posttrain.types import Batch, Completion, Experience, Outputs

if TYPE_CHECKING:
    from posttrain.config import RunConfig

SaveRows = Callable[[int, Sequence[Mapping[str, Any]]], Path]
"""Saves the offending rows of a step and returns the path; `RunStore.evidence` is one."""

_SAVED_ROWS = 16


# --- numbers that are not finite -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class BadRow:
    """A row of a batch, and a wrong number in it."""

    row: int
    """Index of the row in the batch."""
    what: str
    value: float
    token: int | None = None
    """Number of the trained token in its row, counted from 1; None for a number that belongs to the whole row."""

    def __str__(self) -> str:
        where = "" if self.token is None else f" of trained token {self.token}"
        return f"{self.what}{where} is {self.value:g}"


class NonFinite:
    """Stops the run before the optimizer step if the loss or the gradient is not finite, so no weight changes."""

    def __init__(self, save: SaveRows) -> None:
        self.save = save
        self.names: Sequence[RowName] = ()

    def watch(self, names: Sequence[RowName]) -> None:
        """Set the names of the rows of the coming step, in the order of the experience."""
        self.names = names

    def observe_loss(self, loss: Tensor, outputs: Outputs, batch: Batch, step: int) -> None:
        """Raise `NonFiniteError` for a loss that is not finite, naming the row with the worst input of the loss."""
        if not math.isfinite(value := loss.item()):
            numbers = _numbers(batch, outputs)
            self._stop(step, f"the loss is {value}", worst_rows(numbers, batch), numbers, batch)

    def observe_gradient(
        self, norm: float, batch: Batch, step: int, row_norm: Callable[[Batch], float] | None = None
    ) -> None:
        """Raise `NonFiniteError` if the gradient norm of an optimizer step is not finite.

        `row_norm` gives the gradient norm of a batch of one row. After a failure it is called for each row, to find the
        bad one. Without it, the numbers of the batch have to show the row.
        """
        if not math.isfinite(norm):
            numbers = _numbers(batch)
            rows = worst_rows(numbers, batch) if row_norm is None else worst_gradients(row_norm, batch)
            self._stop(step, f"the gradient norm is {norm}", rows, numbers, batch)

    def _stop(self, step: int, what: str, rows: list[BadRow], numbers: Mapping[str, Tensor], batch: Batch) -> NoReturn:
        rows = rows[:_SAVED_ROWS]
        path = self.save(step, [self._evidence(row, numbers, batch) for row in rows])
        raise NonFiniteError(
            given=f"step {step}: {what}; {self._finding(rows, batch)}",
            allowed="finite numbers",
            fix=f"No weight was changed; the offending rows are in {path}. {_advice(rows)}",
        )

    def _finding(self, rows: Sequence[BadRow], batch: Batch) -> str:
        if not rows:
            return "no row has a trained token"
        worst = f"{self._name(rows[0], batch).name} ({rows[0]})"
        if math.isfinite(rows[0].value):
            return f"all numbers that went into it are finite; the largest is in {worst}"
        return f"worst row: {worst}"

    def _name(self, row: BadRow, batch: Batch) -> RowName:
        number = row.row if batch.row_ids_B is None else int(batch.row_ids_B[row.row])
        return self.names[number] if number < len(self.names) else RowName(name=f"row {number} of the step")

    def _evidence(self, row: BadRow, numbers: Mapping[str, Tensor], batch: Batch) -> dict[str, Any]:
        mask_T = batch.completion_mask_BT[row.row]
        trained = {what: values_BT[row.row][mask_T].tolist() for what, values_BT in numbers.items()}
        name = self._name(row, batch)
        found = {"what": row.what, "value": row.value, "token": row.token}
        return {"name": name.name, **found, **name.content, "trained_tokens": trained}


def worst_rows(numbers: Mapping[str, Tensor], batch: Batch) -> list[BadRow]:
    """Rows with a number that is not finite, earlier causes first; without any, the row with the largest number."""
    found: dict[int, BadRow] = {}
    largest: list[BadRow] = []
    mask_BT = batch.completion_mask_BT
    token_BT = mask_BT.cumsum(dim=-1)
    for what, values_BT in numbers.items():

        def number_at(row: int, t: int, what: str = what, values_BT: Tensor = values_BT) -> BadRow:
            return BadRow(row=row, what=what, value=float(values_BT[row, t]), token=int(token_BT[row, t]))

        bad_BT = ~values_BT.isfinite() & mask_BT
        for row in bad_BT.any(dim=-1).nonzero().flatten().tolist():
            found.setdefault(row, number_at(row, int(bad_BT[row].int().argmax())))
        if mask_BT.any():
            place = int(torch.where(mask_BT, values_BT.abs(), -1.0).argmax())
            largest.append(number_at(*divmod(place, mask_BT.shape[1])))
    return list(found.values()) or sorted(largest, key=lambda bad: -abs(bad.value))[:1]


def worst_gradients(row_norm: Callable[[Batch], float], batch: Batch) -> list[BadRow]:
    """Rows whose own gradient is not finite; if each is finite, the row with the largest gradient norm.

    The two rows of a pair have one gradient, which is reported for the chosen row.
    """
    trains = batch.completion_mask_BT.any(dim=-1).tolist()
    units = [unit for unit in batch.units if any(trains[row] for row in unit)]
    rows = [BadRow(row=unit[0], what="gradient norm", value=row_norm(batch.rows(unit))) for unit in units]
    return [bad for bad in rows if not math.isfinite(bad.value)] or sorted(rows, key=lambda bad: -bad.value)[:1]


def _numbers(batch: Batch, outputs: Outputs | None = None) -> dict[str, Tensor]:
    """The `[B, T]` numbers that go into a loss, causes before effects."""
    numbers = {
        "advantage": batch.advantages_BT,
        "return": batch.returns_BT,
        "sampling log-probability": batch.sampling_logprobs_BT,
        "old log-probability": batch.old_logprobs_BT,
        "reference log-probability": batch.ref_logprobs_BT,
        "teacher log-probability": batch.teacher_logprobs_BT,
        "log-probability": outputs and outputs.logprobs_BT,
        "entropy": outputs and outputs.entropy_BT,
        "value": outputs and outputs.values_BT,
        "score": _scores(outputs, batch),
    }
    return {what: values_BT.detach() for what, values_BT in numbers.items() if values_BT is not None}


def _scores(outputs: Outputs | None, batch: Batch) -> Tensor | None:
    """The score of each step at the last token of the step, or the score of each row at every token."""
    if outputs is None or outputs.scores_B is None:
        return outputs and outputs.scores_BT
    return outputs.scores_B[:, None].expand(batch.completion_mask_BT.shape)


def _advice(rows: Sequence[BadRow]) -> str:
    if rows and rows[0].what in ("advantage", "return"):
        return "Look at the rewards of this prompt: one of them is far too large, or is not a number."
    return "Lower train.learning_rate, or set model.precision = float32; then `posttrain resume` the run."


# --- steps that teach nothing ----------------------------------------------------------------------------------------


def turn_rewards(experience: Experience) -> Iterator[Tensor]:
    """Yield the `[P, G]` rewards of each turn, if turns have some in addition to the reward of the trajectory."""
    if experience.token_rewards_BT is not None:
        turns_BT = turns_of(experience.completion_mask_BT)
        count = int(number_of_turns(turns_BT).max())
        sums_BS = sum_over_turns(experience.token_rewards_BT, turns_BT, count)
        yield from sums_BS.T.reshape(count, *experience.rewards_PG.shape).to(experience.rewards_PG.dtype)


def rewards_inside_turns(experience: Experience) -> bool:
    """Have tokens rewards of their own that do not end a turn?"""
    if experience.token_rewards_BT is None:
        return False
    turns_BT = turns_of(experience.completion_mask_BT)
    after_BT = torch.nn.functional.pad(turns_BT[:, 1:], (0, 1), value=-1)
    inside_BT = experience.scored_mask_BT & (turns_BT == after_BT)
    return bool((experience.token_rewards_BT[inside_BT] != 0).any())


class NoSignal:
    """Detects consecutive steps without a learning signal: all answers that are compared got equal rewards.

    If the algorithm compares the completions of one prompt, so does the guard. Otherwise it compares all completions of
    the step: a critic or a batch mean also learns from differences between prompts. Rewards of turns teach where they
    differ, even if their sums do not. Other rewards of tokens always teach something, for example to end sooner.
    """

    def __init__(self, steps: int, *, within_groups: bool = True) -> None:
        self.steps, self.within_groups = steps, within_groups
        self._clear()

    def observe(
        self, step: int, rewards_PG: Tensor, scored_PG: Tensor, *, turns: Iterable[Tensor] = (), inside: bool = False
    ) -> str | None:
        """Raise `GuardStop` at the last step of the streak; warn at its first. `turns` are the `[P, G]` rewards of each
        turn. `inside`: tokens inside of turns have rewards, too."""
        if inside or any(self._differ(each_PG, scored_PG) for each_PG in (rewards_PG, *turns)):
            self._clear()
            return None
        group_size = rewards_PG.shape[1] if self.within_groups else 1
        rewards = rewards_PG[scored_PG].tolist()
        self.streak += 1
        self.answers += len(rewards)
        self.lowest, self.highest = min([self.lowest, *rewards]), max([self.highest, *rewards])
        if self.streak >= self.steps:
            raise GuardStop(
                given=f"step {step}: {self._finding(group_size)}: the model can learn nothing from this",
                allowed=f"fewer than guards.no_signal_steps = {self.steps} such steps in a row",
                fix=self._advice(),
            )
        if self.streak > 1:
            return None
        return f"step {step}: {self._finding(group_size)}. The run stops after {self.steps} such steps in a row"

    def _differ(self, rewards_PG: Tensor, scored_PG: Tensor) -> bool:
        num_prompts, group_size = rewards_PG.shape
        compared = (num_prompts, group_size) if self.within_groups and group_size > 1 else (1, -1)
        return bool(has_signal(rewards_PG.reshape(compared), scored_PG.reshape(compared)).any())

    def state(self) -> dict[str, Any]:
        bounds = {"lowest": self.lowest, "highest": self.highest} if self.answers else {}
        return {"streak": self.streak, "answers": self.answers, **bounds}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._clear()
        vars(self).update(state)

    def _clear(self) -> None:
        self.streak, self.answers = 0, 0
        self.lowest, self.highest = math.inf, -math.inf

    def _finding(self, group_size: int) -> str:
        when = "in this step" if self.streak == 1 else f"in the last {self.streak} steps"
        if self.answers == 0:
            return f"no answer got a reward {when}"
        if self.lowest == self.highest:
            return f"all {self.answers} answers got reward {self.lowest:g} {when}"
        bounds = f"between {self.lowest:g} and {self.highest:g}"
        return f"all {group_size} answers to a prompt got the same reward, {bounds}, for each prompt {when}"

    def _advice(self) -> str:
        more = "A larger sampling.group_size or sampling.temperature makes answers to the same prompt differ more."
        if self.lowest > 0:
            return f"The questions are too easy for this model: use harder ones (data.train). {more}"
        return (
            "Look into rollouts/ first: does the reward recognise a right answer? If it does, the questions are "
            "too hard for this model: use easier ones (data.train), or teach the model the answer format with a "
            f"short SFT. {more}"
        )


class Unmoved:
    """Detects consecutive steps without a gradient, whatever the rewards: no optimizer step, or a gradient of 0.

    A gradient of exactly 0 is wrong if answers are sampled and rewarded. With given answers some losses have no
    gradient once everything is learned: a hinge loss has none for pairs that have reached its margin.
    """

    def __init__(self, steps: int, *, from_rewards: bool = True) -> None:
        self.steps, self.from_rewards = steps, from_rewards
        self.streak, self.warned = 0, False

    def observe(self, step: int, grad_norm: float | None, *, told: bool = False) -> str | None:
        """Raise `GuardStop` at the last step of the streak. Warn once, at the first step without a gradient, unless
        another guard has `told` the reason. A `grad_norm` of None means that no optimizer step was taken."""
        if grad_norm is not None and (grad_norm != 0.0 or not self.from_rewards):
            self.streak = 0
            return None
        self.streak += 1
        finding = (
            "no answer was trained on: the loss left out every one"
            if grad_norm is None
            else "the gradient is exactly 0: the sampled and scored answers teach nothing"
        )
        if self.streak >= self.steps:
            raise GuardStop(
                given=f"step {step}: {finding}; this is step {self.streak} of this kind in a row",
                allowed=f"fewer than guards.no_signal_steps = {self.steps} such steps in a row",
                fix="train.mask_truncated leaves out truncated answers: raise sampling.max_completion_length. "
                "metrics.jsonl counts answers without a reward (unscored_fraction) and answers too far from "
                "their sampler (is/masked_fraction)."
                if grad_norm is None
                else "Look at the rewards in rollouts/: an algorithm that separates right from wrong answers "
                "(algorithm.correct_at) learns nothing if no answer, or every answer, reaches that score.",
            )
        if self.warned or told:
            return None
        self.warned = True
        return f"step {step}: {finding}. The run stops after {self.steps} such steps in a row"

    def state(self) -> dict[str, Any]:
        return {"streak": self.streak, "warned": self.warned}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.streak, self.warned = state["streak"], state["warned"]


def other_limits(completions: Sequence[Completion]) -> Counter[str]:
    """Number of trajectories cut at each limit other than max_completion_length; empty for single answers."""
    ends = (completion.episode.ended for completion in completions if completion.episode and completion.truncated)
    return Counter(end for end in ends if end != "max_completion_length")


class Truncation:
    """Detects answers that are cut before they end: the part that would earn the reward was never written."""

    def __init__(self, max_truncated: float, steps: int, max_completion_length: int) -> None:
        self.max_truncated, self.steps, self.max_completion_length = max_truncated, steps, max_completion_length
        self.streak = 0

    def observe(self, step: int, completions: Sequence[Completion]) -> str | None:
        """Raise `GuardStop` at the last step of the streak; warn at its first."""
        cut = sum(completion.truncated for completion in completions)
        if cut <= self.max_truncated * len(completions):
            self.streak = 0
            return None
        self.streak += 1
        length = sum(len(completion.drawn_ids) for completion in completions) / len(completions)
        others = other_limits(completions)
        also = "".join(f" or {limit} ({count} of them)" for limit, count in others.most_common())
        finding = (
            f"{cut} of {len(completions)} answers ({cut / len(completions):.0%}) were cut at "
            f"sampling.max_completion_length = {self.max_completion_length} tokens{also}; mean length {length:.0f}"
        )
        if self.streak >= self.steps:
            raise GuardStop(
                given=f"step {step}: {finding}; {self.streak} such steps in a row",
                allowed=f"at most guards.max_truncated = {self.max_truncated:g}",
                fix=f"{self._remedy(cut, others)}, or ask for shorter answers (data.system_prompt).",
            )
        if self.streak > 1:
            return None
        return f"step {step}: {finding}. The run stops after {self.steps} such steps in a row"

    def _remedy(self, cut: int, others: Counter[str]) -> str:
        """Advice on the limit that has cut the most answers."""
        if others.total() <= cut / 2:
            return f"Set sampling.max_completion_length = {2 * self.max_completion_length}"
        [(limit, _)] = others.most_common(1)
        return "Lower sampling.max_turns" if limit == "context" else f"Raise sampling.{limit}"

    def state(self) -> dict[str, Any]:
        return {"streak": self.streak}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.streak = state["streak"]


class Unscored:
    """Detects completions without a reward, because the reward function or the environment failed or timed out."""

    def __init__(self, max_unscored: float) -> None:
        self.max_unscored = max_unscored
        self.warned = False

    def observe(self, step: int, scored_PG: Tensor, failures: Sequence[Failure] = ()) -> str | None:
        """Raise `RewardError` above the limit, with the first failure. Below the limit, warn once."""
        missing, total = int((~scored_PG).sum()), scored_PG.numel()
        if missing == 0:
            return None
        first = failures[0] if failures else None
        cause = "; the first error: " + str(first).partition("\n")[0] if first else ""
        finding = f"step {step}: {missing} of {total} answers ({missing / total:.0%}) got no reward{cause}"
        if missing > self.max_unscored * total:
            raise RewardError(
                given=finding,
                allowed=f"at most guards.max_unscored = {self.max_unscored:g}",
                fix=_remedy_of(first),
            )
        if self.warned:
            return None
        self.warned = True
        return f"{finding}. The loss leaves them out, and unscored_fraction counts them"

    def state(self) -> dict[str, Any]:
        return {"warned": self.warned}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.warned = state["warned"]


def _scored_of(experience: Experience, discarded: Sequence[Group]) -> Tensor:
    """Whether each answer of the step has a reward: the trained answers, then those that were sampled and discarded."""
    given = [one for group in discarded if group.scores is not None for row in group.scores.scored_PG for one in row]
    return torch.cat([experience.scored_PG.flatten(), torch.tensor(given, dtype=torch.bool)])


def _remedy_of(failure: Failure | None) -> str:
    """Advice on what left answers without a reward, with the traceback."""
    if failure is not None and failure.label == ENVIRONMENT:
        advice = f"{OF_ENVIRONMENT}."
    else:
        advice = (
            "Fix the reward function, give it more time (rewards.timeout), or return 0.0 for answers that cannot "
            "be judged."
        )
    return advice + "".join(f"\n    {line}" for line in (failure.traceback if failure else "").splitlines())


class Ignored:
    """Detects rewards of environments and agents that no reward of the run reads."""

    def __init__(self) -> None:
        self.missing = ""
        """The entry of `rewards` that would read them; empty if one reads them, or if there is none to read."""
        self.warned = False

    def observe(self, step: int, completions: Sequence[Completion]) -> str | None:
        """Warn once if an episode has a reward that nothing reads."""
        given = [one for one in completions if one.episode is not None and one.episode.total_reward is not None]
        if self.warned or not self.missing or not given:
            return None
        self.warned = True
        return (
            f"step {step}: the {self.missing} rewarded {len(given)} of {len(completions)} trajectories, and the run "
            f"ignores it: {self.missing} is not among rewards. To count it, add {self.missing} to rewards"
        )

    def state(self) -> dict[str, Any]:
        return {"warned": self.warned}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.warned = state["warned"]


class FailingTools:
    """Detects tools whose calls all fail: the model gets errors as results, and learns not to call them."""

    def __init__(self) -> None:
        self.failed: dict[str, int] = {}
        """Number of calls of each tool that failed since its last call that did not."""
        self.warned: list[str] = []

    def observe(self, step: int, completions: Sequence[Completion]) -> str | None:
        """Warn once of each tool whose last calls all failed, if they are enough to blame the tool."""
        called = calls_of(completions)
        for name, calls in called.items():
            self.failed[name] = self.failed.get(name, 0) + calls.made if calls.failed == calls.made else 0
        broken = [name for name in called if self.failed[name] >= ENOUGH_CALLS and name not in (*self.warned, UNKNOWN)]
        self.warned += broken
        if not broken:
            return None
        found = [f"the last {self.failed[name]} calls of {name} all failed: {called[name].result}" for name in broken]
        return (
            f"step {step}: {'; '.join(found)}. The model gets errors as results, and learns not to call the tool. "
            "Correct the tool, or show the model how to call it; `posttrain reward test` tries the tools of a config"
        )

    def state(self) -> dict[str, Any]:
        return {"failed": dict(self.failed), "warned": list(self.warned)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.failed, self.warned = dict(state["failed"]), list(state["warned"])


@dataclass(frozen=True, kw_only=True)
class Guards:
    """The guards of a run."""

    non_finite: NonFinite
    no_signal: NoSignal
    unmoved: Unmoved
    truncation: Truncation
    unscored: Unscored
    ignored: Ignored
    tools: FailingTools
    from_rewards: bool = False
    """Does the run learn from the rewards of sampled answers?"""

    @staticmethod
    def of(config: RunConfig, save: SaveRows, *, within_groups: bool = True, from_rewards: bool = False) -> Guards:
        """The guards that a config asks for.

        `within_groups`: does the algorithm compare the completions of one prompt with each other? `from_rewards`: does
        it learn from the rewards of sampled answers?"""
        limits = config.guards
        return Guards(
            non_finite=NonFinite(save),
            no_signal=NoSignal(limits.no_signal_steps, within_groups=within_groups),
            unmoved=Unmoved(limits.no_signal_steps, from_rewards=from_rewards),
            truncation=Truncation(limits.max_truncated, limits.truncated_steps, config.sampling.max_completion_length),
            unscored=Unscored(limits.max_unscored),
            ignored=Ignored(),
            tools=FailingTools(),
            from_rewards=from_rewards,
        )

    def observe(self, step: int, data: StepData) -> list[str]:
        """Check the sampled and scored answers before the update, and return the warnings.

        If the algorithm does not learn from rewards, only truncation and tools are checked. With given data nothing is.
        """
        self.non_finite.watch(data.names)
        if not data.groups:
            return []
        completions = completions_of(data.sampled)
        warnings = [self.truncation.observe(step, completions), self.tools.observe(step, completions)]
        if self.from_rewards:
            experience = data.experience
            assert isinstance(experience, Experience)
            warnings.insert(0, self.unscored.observe(step, _scored_of(experience, data.discarded), data.failures))
            rewards_PG, scored_PG = experience.total_rewards_PG, experience.scored_PG
            more = {"turns": turn_rewards(experience), "inside": rewards_inside_turns(experience)}
            warnings.append(self.no_signal.observe(step, rewards_PG, scored_PG, **more))
            warnings.append(self.ignored.observe(step, completions))
        return [warning for warning in warnings if warning is not None]

    def observe_update(self, step: int, grad_norm: float | None) -> list[str]:
        """Check the result of a step and return the warnings. `grad_norm` None: no optimizer step was taken."""
        warning = self.unmoved.observe(step, grad_norm, told=self.no_signal.streak > 0)
        return [] if warning is None else [warning]

    def state(self) -> dict[str, Any]:
        """The counts of the guards as plain JSON, for a checkpoint."""
        names = ("no_signal", "unmoved", "truncation", "unscored", "ignored", "tools")
        return {name: getattr(self, name).state() for name in names}

    def load_state(self, state: Mapping[str, Any]) -> None:
        for name, counted in state.items():
            getattr(self, name).load_state(counted)
