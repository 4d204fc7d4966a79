"""timeline.json of a run: activities of engines, rewards and the trainer over time, for Perfetto and chrome://tracing.

It has the Trace Event Format, array form: one event per line, written as it happens. Readers do not need the closing
bracket, so they can also open the file of a killed run.

    B, E   a span begins, ends       i   something happened       C   a counter changed       M   the name of a track

After MOST_EVENTS, and when a run is resumed, the file becomes timeline.previous.json and a new one begins. So at most
2 × MOST_EVENTS events are kept, always the newest.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

FILE, PREVIOUS = "timeline.json", "timeline.previous.json"
MOST_EVENTS = 100_000
"""Maximum events of a file: about 10 MB, which viewers open in seconds."""


class Timeline:
    """The writer of a timeline. It writes nothing until it is opened. Threads can share it; spans of a track nest."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._file: int | None = None

    def open(self, folder: Path, most: int = MOST_EVENTS) -> None:
        """Start to write into a folder."""
        with self._lock:
            self._path, self._most = folder / FILE, most
            self._since = time.time_ns() - time.monotonic_ns()
            self._tracks: dict[str, list[dict[str, Any]]] = {}
            """Track -> its open spans."""
            self._counters: dict[str, dict[str, Any]] = {}
            self._begin_file()

    def close(self) -> None:
        """End all open spans and the file."""
        with self._lock:
            for track in self._tracks if self._file is not None else ():
                while self._tracks[track]:
                    self.end(track)
            self._end_file()

    def begin(self, track: str, name: str, **args: Any) -> None:
        """Begin a span. Viewers show `args` with it."""
        self._put("B", track, name=name, args=args)

    def end(self, track: str) -> None:
        """End the innermost open span of a track, if there is one."""
        self._put("E", track)

    def switch(self, track: str, name: str = "", **args: Any) -> None:
        """End the current activity of a track and begin a new one. Without a name, the track is then idle."""
        with self._lock:
            self.end(track)
            if name:
                self.begin(track, name, **args)

    @contextmanager
    def span(self, track: str, name: str, **args: Any) -> Iterator[None]:
        """Context manager for a span around a block of code."""
        self.begin(track, name, **args)
        try:
            yield
        finally:
            self.end(track)

    def instant(self, track: str, name: str, **args: Any) -> None:
        """Record a single event without duration."""
        self._put("i", track, name=name, s="t", args=args)

    def counter(self, name: str, value: float) -> None:
        """Record a number that changes during the run, if its value has changed."""
        self._put("C", name, name=name, args={name: value})

    # --- the file ----------------------------------------------------------------------------------------------------

    def _put(self, kind: str, track: str, **more: Any) -> None:
        with self._lock:
            if self._file is None:
                return
            event = {"ph": kind, "ts": (time.monotonic_ns() + self._since) // 1000, "pid": 1, **more}
            if kind == "C":
                if self._counters.get(track, {}).get("args") == event["args"]:
                    return
                self._counters[track] = event
            else:
                if track not in self._tracks:
                    self._tracks[track] = []
                    self._write(self._named(track))
                event["tid"] = 1 + list(self._tracks).index(track)
                spans = self._tracks[track]
                if kind == "B":
                    spans.append(event)
                elif kind == "E":
                    if not spans:
                        return
                    spans.pop()
            self._write(event)
            if self._events >= self._most:
                self._end_file()
                self._begin_file()

    def _named(self, track: str) -> dict[str, Any]:
        place = 1 + list(self._tracks).index(track)
        return {"ph": "M", "pid": 1, "tid": place, "name": "thread_name", "args": {"name": track}}

    def _write(self, event: dict[str, Any]) -> None:
        """Write an event. A full disk ends the timeline, but not the run."""
        if self._file is not None:
            try:
                os.write(self._file, (b",\n" if self._events else b"[\n") + json.dumps(event).encode())
                self._events += 1
            except OSError:
                os.close(self._file)
                self._file = None

    def _begin_file(self) -> None:
        """Begin a new file. It repeats the open spans with their start times, and the last counter values."""
        self._events = 0
        with suppress(OSError):
            if self._path.exists():
                os.replace(self._path, self._path.with_name(PREVIOUS))
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        for track, spans in self._tracks.items():
            for event in (self._named(track), *spans):
                self._write(event)
        for event in self._counters.values():
            self._write(event)

    def _end_file(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.write(self._file, b"\n]\n" if self._events else b"[]\n")
            os.close(self._file)
            self._file = None
