"""A sign of life of this process: whoever works says so, and what watches a run sees whether anything goes on.

One count and one word for the whole process, because a beat has to cost nothing where tokens are drawn.
"""

from __future__ import annotations

_beats = [0]
_doing = ["starting"]


def beat(doing: str) -> None:
    """Something has got on: a token, a micro-batch, a reward, a line in a file."""
    _beats[0] += 1
    _doing[0] = doing


def last_beat() -> tuple[int, str]:
    """How many there were, and what the last one was about."""
    return _beats[0], _doing[0]
