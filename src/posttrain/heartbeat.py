"""A sign of life of this process: the working code calls `beat`, and a watcher sees whether the run makes progress.

The whole process has one counter and one word, because a beat must cost nothing in the sampling loop.
"""

from __future__ import annotations

_beats = [0]
_doing = ["starting"]


def beat(doing: str) -> None:
    """Report progress: a token, a micro-batch, a reward or a line in a file is done."""
    _beats[0] += 1
    _doing[0] = doing


def last_beat() -> tuple[int, str]:
    """The number of beats so far, and what the last one reported."""
    return _beats[0], _doing[0]
