"""The watchdog: ends a run that makes no progress, and saves the stack of every thread.

No exception ends a hang: the run may wait for a lock, for a device, or for a reward that overruns its own timeout. A
thread measures the time since the last heartbeat (heartbeat.py). Past the limit it ends the process with exit code 4,
as a guard does, and you can resume the run from its newest checkpoint. It does not end an interactive process (a
notebook, a Python prompt), whose memory holds more than the run: there it only prints a warning. Compiled code that
never releases the GIL stops this thread, too.
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
from posttrain.shown import shown

if TYPE_CHECKING:
    from posttrain.store.run_store import RunStore

STACKS = "stalled.txt"
PATIENCE = 20.0
"""Seconds to write the error, then the process ends anyway: the disk itself may be what hangs."""


def is_interactive() -> bool:
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules


class Watchdog:
    """A context that ends the process after `minutes` without a heartbeat; None sets no limit.

    Time in which the whole process was suspended (by SIGSTOP, or because the machine slept) does not count.
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
            fix=f"{path} has the stack of each thread. `posttrain resume {shown(self.store.folder)}` continues the run "
            "from its newest checkpoint.",
        )
        if self.end is None:
            print(f"warning: {error}", file=sys.stderr, flush=True)
            return
        with suppress(Exception):  # the event log may hang for the same reason as the run
            self.store.error(error)
        print(f"GuardStop: {error}", file=sys.stderr, flush=True)
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                child.kill()
        self.end(GuardStop.exit_code)
