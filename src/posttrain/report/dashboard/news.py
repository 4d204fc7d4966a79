"""News of runs while somebody looks: server-sent events, each the name of a newer state of their files.

A page carries the name of the state that it shows. It listens, asks for itself again when another name comes, and puts
in what is new (assets/live.js). Nothing but names is sent, so that all that is shown comes from one place.
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
"""Between two looks, and after which something is sent without news: it tells whether the listener is still there."""
SLICE = 0.25
MOST_LISTENERS = 24


def state_of_all(place: Place, found: Sequence[Standing]) -> str:
    """The name of what the page of all runs shows."""
    return _named([*((run.name, run.state, run.marks) for run in found), *place.pages])


def state_of_runs(folders: Sequence[Path]) -> str:
    """The name of what is on file of some runs."""
    return _named([marks_of(folder) for folder in folders])


def _named(what: object) -> str:
    return hashlib.sha256(repr(what).encode(errors="replace")).hexdigest()[:16]


class News:
    """Tells listeners of new states; looks at the files once a second at most, however many there are."""

    def __init__(self, stopping: Callable[[], bool]) -> None:
        """`stopping`: whether the server wants to end, which it cannot while somebody listens."""
        self._stopping = stopping
        self._known: dict[str, tuple[float, str]] = {}
        self._lock = threading.Lock()
        self._took = 0.0
        """Seconds of the last look, without the wait for those of others."""
        self.listeners = 0

    async def of(self, what: str, look: Callable[[], str], seen: str) -> AsyncIterator[str]:
        """Events for one listener, until it leaves: `what` is the same for all who are to hear the same."""
        if self.listeners >= MOST_LISTENERS:
            return  # several asked at once, and each was let in
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
