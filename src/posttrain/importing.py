"""Imports of torch and transformers without the garbage collector, which takes a fifth of their time.

They make a million objects and hardly any garbage, and the collector looks at all of them again and again.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""What says how the threads of OpenMP wait for each other; whichever is set by the user is obeyed."""


def wait_passively() -> None:
    """Let threads that wait for others sleep. By default they spin, which on a busy machine costs more than the work.

    OpenMP reads this once, when torch is imported; where that has happened, nothing changes.
    """
    if "torch" not in sys.modules and not any(name in os.environ for name in WAITING):
        os.environ["OMP_WAIT_POLICY"] = "passive"


@contextmanager
def uncollected() -> Iterator[None]:
    """No collection meanwhile; afterwards the collector is what it was.

    >>> with uncollected():
    ...     import wave
    >>> gc.isenabled()
    True
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
