"""Live updates of open pages: server-sent events, each the name (a hash) of a newer state of the runs' files.

A page carries the name of the state that it shows. When an event brings another name, the page requests itself again
and replaces the parts that changed (assets/live.js). Events carry only names, so all content comes from one place.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from posttrain.report.dashboard.runs import Place, Standing, marks_of

SECONDS, QUIET = 1.0, 15.0
"""Seconds between two looks at the files, and seconds without news after which a comment is sent: sending fails if the
listener is gone."""
SLICE = 0.25
MOST_LISTENERS = 24


def state_of_all(place: Place, found: Sequence[Standing]) -> str:
    """Return the name of the state that the page of all runs shows."""
    return _named([*((run.name, run.state, run.marks) for run in found), *place.pages])


def state_of_runs(folders: Sequence[Path]) -> str:
    """Return the name of the state of some runs' files."""
    return _named([marks_of(folder) for folder in folders])


def _named(what: object) -> str:
    return hashlib.sha256(repr(what).encode(errors="replace")).hexdigest()[:16]


class News:
    """Sends new states to listeners. It looks at the files at most once a second, for any number of listeners."""

    def __init__(self, stopping: Callable[[], bool]) -> None:
        """`stopping` says whether the server is shutting down: it cannot end while a listener is connected."""
        self._stopping = stopping
        self._known: dict[str, tuple[float, str]] = {}
        self._lock = threading.Lock()
        self._took = 0.0
        """Duration of the last look in seconds, without the wait for the lock."""
        self.listeners = 0

    async def of(self, what: str, look: Callable[[], str], seen: str) -> AsyncIterator[str]:
        """Yield events for one listener until it leaves. Listeners with the same `what` share their looks."""
        if self.listeners >= MOST_LISTENERS:
            return  # several connected at the same time and all passed the server's check
        self.listeners += 1
        try:
            said = time.monotonic()
            while not self._stopping():
                now = await asyncio.to_thread(self._looked, what, look)
                if now != seen:
                    yield f"data: {now}\n\n"
                    seen, said = now, time.monotonic()
                elif time.monotonic() - said > QUIET:
                    yield ": nothing new\n\n"
                    said = time.monotonic()
                await self._wait(max(SECONDS, 10 * self._took))
        finally:
            self.listeners -= 1

    def _looked(self, what: str, look: Callable[[], str]) -> str:
        with self._lock:
            when, state = self._known.get(what, (-SECONDS, ""))
            if time.monotonic() - when >= SECONDS:
                begun = time.monotonic()
                state = look()
                self._known[what] = time.monotonic(), state
                self._took = time.monotonic() - begun
            return state

    async def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._stopping() and time.monotonic() < end:
            await asyncio.sleep(SLICE)
