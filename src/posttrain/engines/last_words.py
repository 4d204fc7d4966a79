"""What is told of an engine's process that has ended."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

LAST_LINES = 2000
"""Bytes of a log, the last of whose lines is quoted."""


def last_words(code: int, log: Path) -> str:
    """How a process ended, by its exit code (below 0: minus the signal), and the last line that it printed."""
    if code < 0:
        return f"killed by signal {-code} ({signal.strsignal(-code)})"
    with suppress(OSError):
        lines = log.read_bytes()[-LAST_LINES:].decode(errors="replace").strip().splitlines()
        if lines and code > 0:
            return f"exited with code {code}; its last line: {lines[-1].strip()}"
    return f"exited with code {code}"
