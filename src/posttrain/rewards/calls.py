"""Call a reward function: read the arguments that its signature asks for, and record the outcome of each call.

Worker processes and in-process threads both run this code. They differ only in how the outcomes travel back.
"""

from __future__ import annotations

import inspect
import math
import threading
import time
import traceback
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, Protocol

from posttrain.errors import ConfigError, PosttrainError
from posttrain.verify.verdict import Verdict

if TYPE_CHECKING:
    import asyncio

Kind = Literal["value", "invalid", "exception", "timeout", "crash"]
MAX_MESSAGE, MAX_TRACEBACK = 500, 8000
"""Maximum lengths of the message and of the traceback in an outcome, in characters."""

ASYNC_GRACE = 1.0
"""Seconds after its deadline that an async function gets to react to its cancellation."""

A_COROUTINE = "a coroutine"
"""The message of a call whose result nobody awaited, as of an async function behind a plain decorator."""


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The arguments of a reward function, read from its parameter names."""

    batch: bool
    """True for TRL's form `f(prompts, completions, **columns) -> list`, False for `f(prompt, completion, **row)`."""
    is_async: bool
    required: tuple[str, ...]
    """Parameters without a default."""
    optional: tuple[str, ...]
    takes_any: bool
    """True if the function has `**kwargs`: it then receives every column."""
    by_group: bool = False
    """True for a list function whose attribute `by_group` is True. It is called once per prompt, with the prompt's
    completions, and so it can be called while other prompts are still being sampled."""
    per_token: bool = False
    """True for a function whose attribute `per_token` is True. For each completion it returns a list with one number
    per token instead of a single number."""

    @staticmethod
    def of(function: Callable[..., Any], name: str) -> Signature:
        """Read the signature of a function. ConfigError if it has neither of the two forms."""
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError) as error:
            raise ConfigError(
                given=f"the signature of {name} cannot be read: {error}", allowed="a Python function"
            ) from None
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        names = {p.name for p in named}
        batch, sample = bool(names & {"prompts", "completions"}), bool(names & {"prompt", "completion"})
        if batch == sample or any(p.kind is p.POSITIONAL_ONLY for p in parameters):
            raise ConfigError(
                given=f"{name}{inspect.signature(function)} matches neither form of a reward function",
                allowed="f(prompts, completions, **columns) -> list, or f(prompt, completion, **row) -> float",
                fix="Name the parameters like this. Of the two, only the one for completions is required.",
            )
        call = getattr(function, "__call__", None)  # noqa: B004 - an object whose __call__ is a coroutine function
        return Signature(
            batch=batch,
            is_async=inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call),
            required=tuple(p.name for p in named if p.default is p.empty),
            optional=tuple(p.name for p in named if p.default is not p.empty),
            takes_any=any(p.kind is p.VAR_KEYWORD for p in parameters),
            by_group=batch and getattr(function, "by_group", False) is True,
            per_token=getattr(function, "per_token", False) is True,
        )

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> Signature:
        return Signature(**{**fields, "required": tuple(fields["required"]), "optional": tuple(fields["optional"])})

    @property
    def named(self) -> tuple[str, ...]:
        return self.required + self.optional


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of one call. `value` is a number, None or a list of these. For a reward that gives each token a
    number it is a list of lists. The other kinds have a message."""

    kind: Kind
    value: Any = None
    verdict: Any = None
    """The `Verdict` as plain JSON, if the function returned one instead of a number. A list if `value` is a list."""
    message: str = ""
    traceback: str = ""
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Did the call give no value, without breaking the contract? The completion is then unscored."""
        return self.kind in ("exception", "timeout", "crash")


class Abandoned(Exception):
    """The result is no longer needed."""


class Runner(Protocol):
    """Makes the calls of one reward in this process, or in its own processes."""

    def run(
        self,
        calls: Sequence[Mapping[str, Any]],
        settings: Mapping[str, Any],
        timeout: float,
        over: threading.Event | None = None,
    ) -> list[Outcome]:
        """One outcome per call, in order. Once `over` is set, no further call begins, and Abandoned is raised."""
        ...

    def close(self) -> None:
        """End the processes that the runner owns."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Warnings to show to the user in each run, as sentences."""
        ...

    @property
    def facts(self) -> Sequence[str]:
        """Sentences on how the reward judges. Complete after the gold answers have been checked."""
        ...


Emit = Callable[[int, Outcome], None]
Call = tuple[int, Mapping[str, Any]]
"""Number of a call, and its keyword arguments."""


def run_calls(
    function: Callable[..., Any],
    calls: Iterable[Call],
    settings: Mapping[str, Any],
    *,
    is_async: bool,
    timeout: float,
    emit: Emit,
    runner: asyncio.Runner | None,
) -> None:
    """Make the calls and pass each outcome to `emit` as soon as it is known.

    The calls of a plain function are made one after the other, so that the observer knows which call is running. The
    calls of an async function are gathered: they wait together, each for at most `timeout` seconds. Only they need the
    event loop of `runner`.
    """
    if is_async:
        assert runner is not None
        runner.run(_gather(function, calls, settings, timeout, emit))
        return
    for number, arguments in calls:
        emit(number, run_call(function, arguments, settings))


def run_call(function: Callable[..., Any], arguments: Mapping[str, Any], settings: Mapping[str, Any]) -> Outcome:
    """Make one call of a plain function. Any exception becomes an outcome."""
    start = time.perf_counter()
    try:
        value = function(**arguments, **settings)
    except BaseException as error:  # SystemExit too: a reward function must not end the run
        return failed(error, time.perf_counter() - start)
    return judged(value, time.perf_counter() - start)


def own_runner() -> asyncio.Runner:
    """Return a runner on the event loop that a reward file took when it was imported; otherwise on a new one.

    The file may have created clients for its loop. A loop that it has closed, or runs in a thread, is not used. A
    process has one runner, so files that are imported later have to take this loop.
    """
    import asyncio  # takes 30 ms, and most functions are not async

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            loop = asyncio.get_event_loop()
        except RuntimeError:  # the file has called asyncio.run
            loop = None
    if loop is None or loop.is_closed():
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=asyncio.new_event_loop if loop.is_running() else lambda: loop)


async def _gather(
    function: Callable[..., Any], calls: Iterable[Call], settings: Mapping[str, Any], timeout: float, emit: Emit
) -> None:
    import asyncio  # takes 30 ms, and most functions are not async

    async def one(number: int, arguments: Mapping[str, Any]) -> None:
        start = time.perf_counter()
        clock = asyncio.timeout(timeout)
        try:
            async with clock:
                outcome = judged(await function(**arguments, **settings), time.perf_counter() - start)
        except BaseException as error:
            seconds = time.perf_counter() - start
            outcome = timed_out(timeout, seconds) if clock.expired() else failed(error, seconds)
        emit(number, outcome)

    await asyncio.gather(*(one(number, arguments) for number, arguments in calls))


def judged(value: Any, seconds: float) -> Outcome:
    """The outcome of a call that returned: "value" for a number, None or a list of these, and else "invalid"."""
    if hasattr(value, "tolist"):  # numpy and torch, including their scalars
        value = value.tolist()
    values = value if isinstance(value, list | tuple) else [value]
    try:
        numbers = [_numbers(item) for item in values]
    except TypeError as error:
        return Outcome(kind="invalid", message=str(error), seconds=seconds)
    verdicts = [item.to_json() if isinstance(item, Verdict) else None for item in values]
    if values is not value:
        return Outcome(kind="value", value=numbers[0], verdict=verdicts[0], seconds=seconds)
    return Outcome(kind="value", value=numbers, verdict=verdicts if any(verdicts) else None, seconds=seconds)


def failed(error: BaseException, seconds: float = 0.0) -> Outcome:
    """The outcome of a call that raised. Its traceback has only the frames of user code."""
    frames = error.__traceback__.tb_next if error.__traceback__ else None
    trace = "".join(traceback.format_exception(type(error), error, frames))
    if isinstance(error, PosttrainError):
        message = error.given
    else:
        message = "".join(traceback.format_exception_only(type(error), error)).strip()
    return Outcome(kind="exception", message=message[:MAX_MESSAGE], traceback=trace[-MAX_TRACEBACK:], seconds=seconds)


def timed_out(timeout: float, seconds: float, trace: str = "") -> Outcome:
    return Outcome(kind="timeout", message=f"no result after {timeout:g} s", traceback=trace, seconds=seconds)


def _numbers(item: Any) -> float | list[float | None] | None:
    """A returned number, or a list with one number per token of a completion."""
    if isinstance(item, list | tuple):
        return [_number(one) for one in item]
    if getattr(item, "ndim", 0):
        return [_number(one) for one in item.tolist()]
    return _number(item)


def _number(value: Any) -> float | None:
    """A returned number as a float; infinite if it is too large for one. TypeError if it is not a number."""
    if isinstance(value, Verdict):
        return value.score
    value = plain(value)
    if value is None:
        return None
    if not isinstance(value, Real):
        raise TypeError(_described(value))
    try:
        return float(value)
    except OverflowError:
        return math.inf


def plain(value: Any) -> Any:
    """A value of numpy or torch as that of Python; None for a masked one, whose item is a mere filler."""
    if not hasattr(value, "item"):
        return value
    return None if getattr(value, "mask", False) else value.item()


def _described(value: Any) -> str:
    if isinstance(value, Coroutine):
        value.close()  # otherwise Python warns that it was never awaited
    return A_COROUTINE if isinstance(value, Awaitable) else f"{_shortened(value)} of type {type(value).__name__}"


def _shortened(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        return "a value"
    return text if len(text) <= 60 else text[:57] + "..."
