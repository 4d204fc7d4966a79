"""One line on stderr for each part of a long task, so that silence never looks like a hang."""

from __future__ import annotations

import sys
import threading
import time
from typing import TextIO

QUIET_SECONDS = 5.0
"""Before the first line where stderr is no terminal: what is done by then needs none."""


class Progress:
    """Called with what begins. On a terminal every part is shown; elsewhere that in which 5 s pass, and later ones."""

    def __init__(self, stream: TextIO | None = None, quiet_seconds: float = QUIET_SECONDS) -> None:
        self._stream = stream or sys.stderr
        self._quiet = 0.0 if self._stream.isatty() else quiet_seconds
        self._start = time.monotonic()
        self._now = ""
        self._lock = threading.Lock()
        self._timer = threading.Timer(quiet_seconds, self._remind)
        self._timer.daemon = True

    def __enter__(self) -> Progress:
        if self._quiet:
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def __call__(self, what: str) -> None:
        with self._lock:
            self._now = what
            if time.monotonic() - self._start >= self._quiet:
                self._show()

    def _remind(self) -> None:
        with self._lock:
            if self._now:
                self._show()

    def _show(self) -> None:
        print(f"{time.monotonic() - self._start:5.0f} s  {self._now}", file=self._stream, flush=True)
