"""The calls of one reward in one step, and the result of each: numbers, reasons, failures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from posttrain.errors import RewardError
from posttrain.heartbeat import beat
from posttrain.rewards.calls import A_COROUTINE, Outcome
from posttrain.rewards.components import Component, Row
from posttrain.rewards.scores import Failure
from posttrain.verify.verdict import Verdict

if TYPE_CHECKING:
    from posttrain.rewards.judge import Judgement


LARGEST = 1e6
"""Maximum size of one reward, as a multiple of the usual size in its step."""
AWAIT_IT = (
    "Declare the reward with async def, or await it. A decorator around an async function has to be an async function "
    "itself, or the reward looks like a plain one."
)


class CallBatch:
    """The calls of one component in one step, for one group or for all, and their outcomes.

    Quick decisions are made when the batch is created.
    """

    def __init__(self, component: Component, calls: Sequence[Mapping[str, Any]]) -> None:
        self.component = component
        self._calls = calls
        self._outcomes = [component.decide(call) for call in calls]
        self.judgements: tuple[Judgement, ...] = ()
        self.asked: Sequence[Outcome] = ()
        """The outcomes of the calls that were not decided immediately."""

    @property
    def open(self) -> list[int]:
        return [number for number, outcome in enumerate(self._outcomes) if outcome is None]

    @property
    def open_calls(self) -> list[Mapping[str, Any]]:
        return [self._calls[number] for number in self.open]

    @property
    def outcomes(self) -> list[Outcome]:
        return [outcome for outcome in self._outcomes if outcome is not None]

    def settle(self, outcomes: Sequence[Outcome], judgements: Sequence[Judgement] = ()) -> None:
        """Enter the outcomes of the open calls, in order, and a judge's judgements on them."""
        beat("rewards came back")
        for number, outcome in zip(self.open, outcomes, strict=True):
            self._outcomes[number] = outcome
        self.judgements, self.asked = tuple(judgements), outcomes

    def read(self, rows: Sequence[Row]) -> Read:
        """One value and one verdict per row, in order. RewardError for a value that no reward may return."""
        outcomes = self._of_each(rows)
        tokens: list[list[float] | None] = []
        if self.component.signature.per_token:
            tokens = [self._of_tokens(outcome, row) for outcome, row in zip(outcomes, rows, strict=True)]
        values = [
            _value(self.component.label, outcome, row) if own is None else math.fsum(own)
            for outcome, row, own in zip(outcomes, rows, tokens or [None] * len(rows), strict=True)
        ]
        verdicts = [
            self._of_sum(math.fsum(own)) if own is not None else _verdict(outcome, value)
            for outcome, value, own in zip(outcomes, values, tokens or [None] * len(rows), strict=True)
        ]
        failures: list[tuple[int, Failure]] = []
        for number, (outcome, verdict) in enumerate(zip(outcomes, verdicts, strict=True)):
            if (kind := _failure(outcome, verdict)) is not None:
                failure = Failure(
                    label=self.component.label,
                    prompt=rows[number].prompt.index,
                    completion=rows[number].number,
                    kind=kind,
                    message=outcome.message or (verdict.detail if verdict is not None else ""),
                    traceback="" if failures else outcome.traceback,
                )
                failures.append((number, failure))
        return Read(
            values=values,
            tokens=tokens,
            verdicts=verdicts,
            failures=failures,
            seconds=sum(outcome.seconds for outcome in self.outcomes),
            judgements=self.judgements,
        )

    def _of_tokens(self, outcome: Outcome, row: Row) -> list[float] | None:
        """The numbers of each token; None if a built-in gave one number for the whole completion."""
        label = self.component.label
        if self.component.builtin is None:
            return _of_tokens(label, outcome, row)
        return _of_turns(label, outcome.value, row) if isinstance(outcome.value, list) else None

    def _of_sum(self, total: float) -> Verdict | None:
        """The verdict on a completion whose tokens have numbers."""
        builtin = self.component.builtin
        return None if builtin is None or builtin.of_sum is None else builtin.of_sum(total)

    def _of_each(self, rows: Sequence[Row]) -> list[Outcome]:
        """The outcome of each row. One call may have answered for all rows."""
        if not self.component.signature.batch:
            return self.outcomes
        outcome, size = self.outcomes[0], len(rows)
        if outcome.failed:
            return [replace(outcome, seconds=outcome.seconds / size)] * size
        if outcome.kind == "invalid" or not isinstance(outcome.value, list) or len(outcome.value) != size:
            got = f"{len(outcome.value)} values" if isinstance(outcome.value, list) else outcome.message or "one number"
            raise RewardError(
                given=f'reward "{self.component.label}" returned {got} for {size} completions',
                fix=AWAIT_IT
                if outcome.message == A_COROUTINE
                else "Return a list with one number, or None where the reward does not apply, per completion.",
            )
        verdicts = outcome.verdict or [None] * size
        return [
            Outcome(kind="value", value=value, verdict=verdict, seconds=outcome.seconds / size)
            for value, verdict in zip(outcome.value, verdicts, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class Read:
    """The results of a batch for each row."""

    values: list[float | None]
    """Score of each row; None if the reward was not applicable or failed."""
    tokens: list[list[float] | None] = field(default_factory=list)
    """For a reward that gives each token a number: these numbers, whose sum is the value. None if it gave one number
    for the whole completion."""
    verdicts: list[Verdict | None]
    """Verdict on each row; None if the reward gave a number without a reason."""
    failures: list[tuple[int, Failure]]
    """Number of the row and failure. Only the first failure has a traceback."""
    seconds: float = 0.0
    """Seconds spent in all calls together."""
    judgements: tuple[Judgement, ...] = ()

    @property
    def has_reasons(self) -> bool:
        return any(verdict is not None for verdict in self.verdicts)


def read_all(parts: Iterable[tuple[Sequence[Row], CallBatch]]) -> Read:
    """Join the results of several batches of one component. Rows are numbered consecutively."""
    whole = Read(values=[], verdicts=[], failures=[])
    for rows, batch in parts:
        read, first = batch.read(rows), len(whole.values)
        failures = [(first + number, failure) for number, failure in read.failures]
        if whole.failures:
            failures = [(number, replace(failure, traceback="")) for number, failure in failures]
        whole = Read(
            values=whole.values + read.values,
            tokens=whole.tokens + read.tokens,
            verdicts=whole.verdicts + read.verdicts,
            failures=whole.failures + failures,
            seconds=whole.seconds + read.seconds,
            judgements=whole.judgements + read.judgements,
        )
    return whole


def check_scale(label: str, values: Sequence[float | None], rows: Sequence[Row]) -> None:
    """Raise RewardError for a finite value that is so large that all others of the step vanish next to it.

    One completion then decides the mean and the deviation of the step, and in float32 all others become equal.
    """
    found = [(abs(value), place) for place, value in enumerate(values) if value is not None]
    if not found:
        return
    usual = max(1.0, statistics.median(size for size, _ in found))
    largest, place = max(found)
    if largest <= LARGEST * usual and largest <= LARGEST**2:
        return
    row = rows[place]
    raise RewardError(
        given=f'reward "{label}" returned {values[place]:g} for {_which(row)}, but half of this step\'s rewards '
        f"are within {usual:g} of 0",
        allowed=f"values up to {LARGEST:g} times the usual one, and up to {LARGEST**2:g}: next to a larger one, "
        "the others count for nothing",
        fix="Bound the reward, for example min(max(value, -1), 1), or return None if the reward does not apply.",
    )


def _verdict(outcome: Outcome, value: float | None) -> Verdict | None:
    if outcome.failed:
        reason = "timeout" if outcome.kind == "timeout" else "error"
        return Verdict(None, reason, seconds=outcome.seconds, detail=outcome.message)
    if outcome.verdict is None:
        return None
    return Verdict.from_json(
        {**outcome.verdict, "score": value, "seconds": outcome.verdict["seconds"] or outcome.seconds}
    )


def _failure(outcome: Outcome, verdict: Verdict | None) -> Literal["exception", "timeout", "crash"] | None:
    """The kind of failure; None if the verifier did not fail. A reward that does not apply has not failed."""
    if outcome.kind in ("exception", "timeout", "crash"):
        return outcome.kind
    if verdict is None or verdict.score is not None or verdict.reason == "not_applicable":
        return None
    return "timeout" if verdict.reason == "timeout" else "exception"


def _value(label: str, outcome: Outcome, row: Row) -> float | None:
    value = outcome.value
    if outcome.failed or (outcome.kind == "value" and value is None):
        return None
    if isinstance(value, float) and math.isfinite(value):
        return value
    got = outcome.message or (f"a list of {len(value)}" if isinstance(value, list) else value)
    one_each = " For one number per token, set `per_token = True` on the function." if isinstance(value, list) else ""
    raise RewardError(
        given=f'reward "{label}" returned {got} for {_which(row)}',
        fix=AWAIT_IT
        if outcome.message == A_COROUTINE
        else "Rewards must be finite numbers, or None where the reward does not apply. "
        f"Return 0.0 for answers that cannot be parsed.{one_each}",
    )


def _of_tokens(label: str, outcome: Outcome, row: Row) -> list[float] | None:
    """One number for each token of the completion; None if the reward failed or does not apply."""
    value = outcome.value
    if outcome.failed or (outcome.kind == "value" and value is None):
        return None
    problem = token_problem(value, row.completion.drawn) if isinstance(value, list) else outcome.message or f"{value}"
    if not problem:
        return value
    raise RewardError(
        given=f'reward "{label}", which gives a reward to each token, returned {problem} for {_which(row)}',
        allowed=f"a list with one number per token of completion_ids, finite and within {LARGEST**2:g} of 0, and 0 for "
        "tokens that the policy did not draw; or None where the reward does not apply",
        fix=AWAIT_IT
        if outcome.message == A_COROUTINE
        else "Ask for the argument completion_ids and return a list of that length.",
    )


def token_problem(value: list[Any], drawn: Sequence[bool]) -> str:
    """What is wrong with the first number that no token may have; "" if all are right."""
    if len(value) != len(drawn):
        return f"{len(value)} numbers for {len(drawn)} tokens"
    for place, number in enumerate(value):
        if not isinstance(number, int | float) or not _may_count(number):
            return f"{number} for token {place + 1}"
        if number and not drawn[place]:
            return f"{number:g} for token {place + 1}, which the policy did not draw,"
    return ""


def _may_count(number: float) -> bool:
    return abs(number) <= LARGEST**2  # nan is not


def _of_turns(label: str, value: list[float], row: Row) -> list[float]:
    """What the environment gave, on the last token of each turn. Its author wrote methods, and no numbers of tokens."""
    wrong = next((number for number in value if not _may_count(number)), None)
    if wrong is None:
        return value
    raise RewardError(
        given=f'reward "{label}": the environment gave {wrong:g} to a turn of {_which(row)}',
        allowed=f"values of turn_reward() and reward() within {LARGEST**2:g} of 0",
        fix="Bound what turn_reward() and reward() of the environment return, for example min(max(value, -1), 1).",
    )


def _which(row: Row) -> str:
    return f"prompt {row.prompt.index}, completion {row.number + 1} of {row.group_size} ({_quoted(row)})"


def _quoted(row: Row) -> str:
    text = " ".join(row.completion.text.split())
    return f'"{text if len(text) <= 60 else "... " + text[-56:]}"'
