"""Live bytes of tensors over time, from the reports of PyTorch's CPU allocator.

Each allocation and release that the allocator reports is recorded with its time, including those inside kernels. The
live bytes at a moment are the sum of all changes before it. Memory that was allocated before the measurement is not
counted, so the measurement begins before a model is loaded. But the allocator does report releases of such memory, so
garbage is collected first. Mapped files, Python objects and memory of libraries are not tensors; `Resident` measures
the memory that includes them.
"""

from __future__ import annotations

import gc
import threading
import time
from bisect import bisect_right
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from torch.profiler import ProfilerActivity, profile


class Span(NamedTuple):
    """A named interval of time, in nanoseconds since the epoch."""

    name: str
    begin: int
    end: int


class LiveBytes:
    """A meter of live bytes. Use `with meter.measuring():` once, and inside it `with meter.span(name):` repeatedly."""

    def __init__(self, mapped: Container[int] = ()) -> None:
        """`mapped`: sizes of files that are mapped during the measurement. The allocator reports them, too."""
        self.mapped, self.spans = mapped, list[Span]()
        self._times: list[int] = []
        self._changes: list[int] = []
        self._live: list[int] = []

    @contextmanager
    def measuring(self) -> Iterator[None]:
        gc.collect()  # reference cycles keep an earlier run alive, and its release would be subtracted here
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=False) as profiler:
            yield
        found = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
        sizes = ((e.start_ns(), e.nbytes()) for e in found if e.name() == "[memory]")  # type: ignore[attr-defined]
        changes = sorted((when, size) for when, size in sizes if abs(size) not in self.mapped)
        self._times, self._changes = [when for when, _ in changes], [size for _, size in changes]
        self._live = list(accumulate(self._changes, initial=0))

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        begin = time.time_ns()
        try:
            yield
        finally:
            self.spans.append(Span(name, begin, time.time_ns()))

    def peaks(self) -> Mapping[str, int]:
        """Peak of the live bytes in the spans of each name. If spans are nested, a moment belongs to the inner one."""
        inner_first = sorted(self.spans, key=lambda span: span.end - span.begin)
        found: dict[str, int] = {}
        for place, span in enumerate(inner_first):
            parts = [(span.begin, span.end)]
            for other in inner_first[:place]:
                parts = [part for whole in parts for part in _without(whole, other)]
            most = max((self._peak(begin, end) for begin, end in parts), default=0)
            found[span.name] = max(found.get(span.name, 0), most)
        return found

    def largest(self, name: str) -> int:
        """Size of the largest single allocation in the spans of that name, in bytes."""
        spans = [
            (bisect_right(self._times, s.begin), bisect_right(self._times, s.end)) for s in self.spans if s.name == name
        ]
        return max((size for first, last in spans for size in self._changes[first:last]), default=0)

    def before(self, name: str) -> int:
        """Live bytes at the beginning of the first span of that name."""
        begin = min(span.begin for span in self.spans if span.name == name)
        return self._live[bisect_right(self._times, begin)]

    def _peak(self, begin: int, end: int) -> int:
        """Peak of the live bytes in an interval, including the level at its beginning."""
        first, last = bisect_right(self._times, begin), bisect_right(self._times, end)
        return max(self._live[first : last + 1])


def _without(part: tuple[int, int], other: Span) -> Sequence[tuple[int, int]]:
    """The parts of an interval before and after another one."""
    begin, end = part
    if other.end <= begin or end <= other.begin:
        return [part]
    return [(a, b) for a, b in ((begin, other.begin), (other.end, end)) if a < b]


class Resident:
    """The anonymous resident memory of this process, without files and shared memory: its peak and its start value.
    Make it after all imports."""

    def __init__(self, seconds: float = 0.002) -> None:
        self.seconds = seconds
        self.peak = self.start = anonymous_bytes()

    @contextmanager
    def watching(self) -> Iterator[None]:
        done = threading.Event()

        def look() -> None:
            while not done.wait(self.seconds):
                self.peak = max(self.peak, anonymous_bytes())

        watcher = threading.Thread(target=look, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()


def anonymous_bytes() -> int:
    """RssAnon of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
