"""Reward functions that exist only in this process: lambdas, closures, objects that hold a model.

A worker cannot import them, so they run in a thread. A thread cannot be killed: a late one is abandoned and continues
in the background. When too many threads hang at the same time, the run stops and says how to make the function
killable.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from posttrain.errors import RewardError
from posttrain.rewards.calls import ASYNC_GRACE, Abandoned, Call, Outcome, run_calls, timed_out

MAX_ABANDONED = 3
"""Maximum number of threads of one function that may hang in the background at the same time."""


class _GivenUp(BaseException):
    """Ends an abandoned thread when its late call returns. Another thread has taken the calls after that one."""


class ThreadRunner:
    """Makes the calls of one function in a thread, with the same outcomes as a worker process."""

    def __init__(self, function: Callable[..., Any], *, label: str, is_async: bool) -> None:
        self._function, self._label, self._is_async = function, label, is_async
        self._abandoned: list[threading.Thread] = []

    def run(
        self,
        calls: Sequence[Mapping[str, Any]],
        settings: Mapping[str, Any],
        timeout: float,
        over: threading.Event | None = None,
    ) -> list[Outcome]:
        """One outcome per call, in order.

        A late call times out, and the calls after it get a new thread. Calls of an async function wait together: one
        call that blocks the event loop makes all unfinished calls time out. RewardError when too many threads hang.
        """
        outcomes: dict[int, Outcome] = {}
        while waiting := [(number, call) for number, call in enumerate(calls) if number not in outcomes]:
            outcomes |= self._run_thread(waiting, settings, timeout, over or threading.Event())
            late = [number for number, _ in waiting if number not in outcomes]
            outcomes |= {number: timed_out(timeout, timeout) for number in (late if self._is_async else late[:1])}
        return [outcomes[number] for number in range(len(calls))]

    def close(self) -> None:
        """Do nothing: the runner owns no process, and hanging threads end with this process."""

    notes: Sequence[str] = ()
    facts: Sequence[str] = ()

    def _run_thread(
        self, calls: list[Call], settings: Mapping[str, Any], timeout: float, over: threading.Event
    ) -> dict[int, Outcome]:
        """The outcomes that one new thread gives until it is done or late."""
        answers: queue.SimpleQueue[tuple[int, Outcome]] = queue.SimpleQueue()
        given_up = threading.Event()

        def emit(number: int, outcome: Outcome) -> None:
            if given_up.is_set():
                raise _GivenUp
            answers.put((number, outcome))
            if over.is_set():
                raise _GivenUp

        def work() -> None:
            with suppress(_GivenUp), asyncio.Runner() as runner:
                run_calls(
                    self._function,
                    calls,
                    settings,
                    is_async=self._is_async,
                    timeout=timeout,
                    emit=emit,
                    runner=runner,
                )

        thread = threading.Thread(target=work, name=f"reward {self._label}", daemon=True)
        thread.start()
        outcomes: dict[int, Outcome] = {}
        try:
            for _ in calls:
                number, outcome = answers.get(timeout=timeout + (ASYNC_GRACE if self._is_async else 0.0))
                outcomes[number] = outcome
                if over.is_set():
                    raise Abandoned
        except queue.Empty:
            given_up.set()
            self._abandon(thread)
        return outcomes

    def _abandon(self, late: threading.Thread) -> None:
        self._abandoned = [thread for thread in [*self._abandoned, late] if thread.is_alive()]
        if len(self._abandoned) > MAX_ABANDONED:
            raise RewardError(
                given=f'reward "{self._label}" hangs in {len(self._abandoned)} threads, and a thread cannot be killed',
                fix="Put the function into a file and name it (`function: path/to/file.py:name`): it then runs in a "
                "process that is killed at its deadline. Or raise its timeout.",
            )
