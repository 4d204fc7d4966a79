r"""The bounds that keep an answer cheap to read. They hold before any arithmetic is done.

No answer of a data set comes near them; what goes beyond is not worked out: `9^{9^{9^9}}`, `99999999!`, 200,000 digits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from posttrain.verify.verdict import Reason

MAX_CHARS = 512
"""Characters of an answer."""
MAX_NESTING = 32
"""Brackets, roots, signs and powers within each other."""
MAX_DIGITS = 400
"""Digits of an integer as it is written."""
MAX_EXPONENT = 10_000
"""Of a number to a power."""
MAX_FACTORIAL = 5_000
MAX_BINOMIAL = 10_000
MAX_BITS = 120_000
"""Of all the numbers that an answer makes us compute: enough for 5000! and 9^9999."""
MAX_ITEMS = 64
"""Of a list."""
MAX_TERMS = 200
"""Of a polynomial that is multiplied out."""
MAX_WORK = 2_000
"""Products of two terms in all."""


QUICK_SECONDS = 0.005
"""Of processor time that the process which trains spends on one completion; what takes longer goes to a worker."""
QUICK_CHARS = 30_000
"""Characters behind the reasoning that the process which trains looks through."""


class NeedsWorker(Exception):
    """What a process that must not stop leaves to one that can be killed. The verdict is the same there."""


class NeedsAlgebra(NeedsWorker):
    """Whether two expressions are equal cannot be decided here."""


_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


@contextmanager
def quickly() -> Iterator[None]:
    """Within it NeedsWorker is raised where more than QUICK_SECONDS of this thread's processor time are gone."""
    token = _deadline.set(time.thread_time() + QUICK_SECONDS)
    try:
        yield
    finally:
        _deadline.reset(token)


def check_deadline(chars: int = 0) -> None:
    """Raises NeedsWorker within `quickly` when the time is over, or so much text is to be read."""
    deadline = _deadline.get()
    if deadline is not None and (chars > QUICK_CHARS or time.thread_time() > deadline):
        raise NeedsWorker


def check_algebra() -> None:
    """Raises NeedsAlgebra within `quickly`: an algebra system takes 0.3 s to load, and may work for ever."""
    if _deadline.get() is not None:
        raise NeedsAlgebra


class Unreadable(Exception):
    """An answer that has no value, and why it has none."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason: Reason = reason
        self.detail = detail


class Budget:
    """The remaining budget of arithmetic for one answer; every operation pays before it runs."""

    def __init__(self) -> None:
        self.bits = MAX_BITS
        self.work = MAX_WORK

    def pay_bits(self, bits: int) -> None:
        self.bits -= bits
        if self.bits < 0:
            raise Unreadable("too_large", "the numbers in it have too many digits")

    def pay_work(self, products: int) -> None:
        self.work -= products
        check_deadline()
        if self.work < 0:
            raise Unreadable("too_large", "multiplying it out takes too many terms")
