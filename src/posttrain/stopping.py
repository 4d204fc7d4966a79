"""Ctrl-C and SIGTERM end a command in the same way: by a KeyboardInterrupt that carries the exit code of the signal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def stopped(number: int, message: str = "") -> KeyboardInterrupt:
    """Return the exception for a signal, with the exit code 130 (Ctrl-C) or 143 (SIGTERM)."""
    stop = KeyboardInterrupt(*[message] if message else [])
    vars(stop)["exit_code"] = 128 + number
    return stop


def signal_of(stop: BaseException | None) -> int:
    """Return the number of the signal that raised this exception: SIGINT for one without an exit code."""
    return getattr(stop, "exit_code", 128 + signal.SIGINT) - 128


_state = {"asked": False}  # no threading.Event: a signal handler may interrupt its lock


def ask_to_stop(asked: bool = True) -> None:
    """Tell all threads that somebody waits for the run to stop, or no longer does."""
    _state["asked"] = asked


def stop_is_asked() -> bool:
    """Return whether somebody waits for the run to stop."""
    return _state["asked"]


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Make SIGTERM raise KeyboardInterrupt, like Ctrl-C, unless this process ignores it."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise stopped(number)

    before = signal.getsignal(signal.SIGTERM)
    try:
        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not in the main thread: the caller handles signals
        before = None
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
