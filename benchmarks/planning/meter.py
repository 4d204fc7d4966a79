"""Live bytes of tensors over time, from PyTorch's own account of its allocator for the CPU.

Every allocation and release that the allocator reports is taken down with its time, those inside of kernels included;
what is alive at a moment is the sum before it. Memory that was there before the measuring began is not seen, so it
begins before a model is loaded. The allocator reports the release of what an earlier measuring saw, though, so garbage
is collected first. Files that are mapped, Python's objects and what libraries hold by themselves are no tensors;
resident memory has them, see `Resident`.
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
    """A stretch of time with a name; nanoseconds since the epoch."""

    name: str
    begin: int
    end: int


class LiveBytes:
    """`with meter.measuring():` once; `with meter.span(name):` inside, as often as wanted."""

    def __init__(self, mapped: Container[int] = ()) -> None:
        """`mapped`: sizes of files that are mapped meanwhile, which the account has among the allocations."""
        self.mapped, self.spans = mapped, list[Span]()
        self._times: list[int] = []
        self._changes: list[int] = []
        self._live: list[int] = []

    @contextmanager
    def measuring(self) -> Iterator[None]:
        gc.collect()  # an earlier run is held by cycles: its release now would be taken off this one
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
        """Most that was alive in the spans of each name; where spans lie in each other the inner one has the moment."""
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
        """Bytes of the largest single piece of memory that was taken in the spans of that name."""
        spans = [
            (bisect_right(self._times, s.begin), bisect_right(self._times, s.end)) for s in self.spans if s.name == name
        ]
        return max((size for first, last in spans for size in self._changes[first:last]), default=0)

    def before(self, name: str) -> int:
        """What was alive when the first span of that name began."""
        begin = min(span.begin for span in self.spans if span.name == name)
        return self._live[bisect_right(self._times, begin)]

    def _peak(self, begin: int, end: int) -> int:
        """The level at which the stretch begins, and all levels in it."""
        first, last = bisect_right(self._times, begin), bisect_right(self._times, end)
        return max(self._live[first : last + 1])


def _without(part: tuple[int, int], other: Span) -> Sequence[tuple[int, int]]:
    """What of a stretch lies before the other one, and what after it."""
    begin, end = part
    if other.end <= begin or end <= other.begin:
        return [part]
    return [(a, b) for a, b in ((begin, other.begin), (other.end, end)) if a < b]


class Resident:
    """The most anonymous memory that this process had resident, no files and no shared memory, and what it began with:
    make it when everything is imported."""

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
    """RssAnon of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
