"""Imports of torch and transformers without the garbage collector, which takes a fifth of their time.

They make a million objects and hardly any garbage, and the collector looks at all of them again and again.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
