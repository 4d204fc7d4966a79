"""What is told of an engine's process that has ended."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from posttrain.child import how_it_ended

LAST_LINES = 2000
"""Bytes of a log, the last of whose lines is quoted."""


def last_words(end: int | str, log: Path) -> str:
    """How a process ended (`Child.end`), and the last line that it printed where it gave up by itself."""
    if isinstance(end, int) and end > 0:
        with suppress(OSError):
            lines = log.read_bytes()[-LAST_LINES:].decode(errors="replace").strip().splitlines()
            if lines:
                return f"{how_it_ended(end)}; its last line: {lines[-1].strip()}"
    return how_it_ended(end)
