"""Ends a run in which nothing goes on any more, and leaves where every thread stood.

Whatever hangs, hangs in a way that no exception reaches: a lock, a reward beyond its own timeout, a device. A thread
counts the time without a beat (heartbeat.py); past the limit the process ends with exit code 4, as by a guard, and the
run can be resumed from its newest checkpoint. An interactive process (a notebook, a Python prompt) is not ended: it
has more in memory than the run, so it is told alone. Compiled code that never releases Python's lock stops this
thread, too.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from posttrain.errors import GuardStop
from posttrain.heartbeat import last_beat

if TYPE_CHECKING:
    from posttrain.store.run_store import RunStore

STACKS = "stalled.txt"
PATIENCE = 20.0
"""Seconds that the last words may take: the disk may be what hangs."""


def is_interactive() -> bool:
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules


class Watchdog:
    """A context in which no more than `minutes` may pass without a beat; None: any time may.

    Time in which the whole process was stopped (SIGSTOP, a machine that slept) does not count.
    """

    def __init__(self, store: RunStore, minutes: float | None, end: Callable[[int], object] | None = None) -> None:
        self.store, self.limit = store, 60 * (minutes or 0.0)
        self.end = end or (None if is_interactive() else os._exit)
        self.tick = min(5.0, self.limit / 20)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        if self.limit:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        seen, idle, before = last_beat(), 0.0, time.monotonic()
        while not self._over.wait(self.tick):
            now = time.monotonic()
            idle += min(now - before, 2 * self.tick)
            before = now
            if (beat := last_beat()) != seen:
                seen, idle = beat, 0.0
            elif idle > self.limit:
                self._bark(seen[1], idle)
                return

    def _bark(self, doing: str, idle: float) -> None:
        if self.end is not None:
            last = threading.Timer(PATIENCE, self.end, [GuardStop.exit_code])
            last.daemon = True
            last.start()
        path = self.store.folder / STACKS
        with suppress(OSError):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
            faulthandler.dump_traceback(file, all_threads=True)
            os.close(file)
        error = GuardStop(
            given=f"no progress for {idle / 60:.3g} minutes; the last activity: {doing}",
            allowed=f"at most guards.stalled_minutes = {self.limit / 60:.3g} without a token, a micro-batch, a "
            "reward or a new line in a file",
            fix=f"{path} has the stack of each thread. `posttrain resume {self.store.folder}` continues the run from "
            "its newest checkpoint.",
        )
        if self.end is None:
            print(f"warning: {error}", file=sys.stderr, flush=True)
            return
        with suppress(Exception):  # whatever hangs may be what this needs
            self.store.error(error)
        print(f"GuardStop: {error}", file=sys.stderr, flush=True)
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                child.kill()
        self.end(GuardStop.exit_code)
