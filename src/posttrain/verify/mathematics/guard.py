r"""The limits that keep an answer cheap to read. They are checked before any arithmetic.

No answer in a dataset comes near them. Answers beyond them are not evaluated: `9^{9^{9^9}}`, `99999999!`, 200,000
digits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from posttrain.verify.verdict import Reason

MAX_CHARS = 512
"""Maximum length of an answer, in characters."""
MAX_NESTING = 32
"""Maximum nesting depth of brackets, roots, signs and powers."""
MAX_DIGITS = 400
"""Maximum number of digits of a written integer."""
MAX_EXPONENT = 10_000
"""Largest exponent of a power."""
MAX_FACTORIAL = 5_000
MAX_BINOMIAL = 10_000
MAX_BITS = 120_000
"""Maximum total size, in bits, of all numbers computed for an answer: enough for 5000! and 9^9999."""
MAX_ITEMS = 64
"""Maximum number of items in a list."""
MAX_TERMS = 200
"""Maximum number of terms in a polynomial that is multiplied out."""
MAX_WORK = 2_000
"""Maximum number of products of two terms for an answer."""


QUICK_SECONDS = 0.005
"""Seconds of processor time that the training process spends on one completion. A worker judges slower ones."""
QUICK_CHARS = 30_000
"""Maximum length, in characters, of the text after the reasoning that the training process reads."""


class NeedsWorker(Exception):
    """A process that must not stall leaves the question to one that can be killed, where the verdict is the same."""


class NeedsAlgebra(NeedsWorker):
    """This process cannot decide whether two expressions are equal."""


_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


@contextmanager
def quickly() -> Iterator[None]:
    """Raise NeedsWorker in the block once it has used QUICK_SECONDS of this thread's processor time."""
    token = _deadline.set(time.thread_time() + QUICK_SECONDS)
    try:
        yield
    finally:
        _deadline.reset(token)


def check_deadline(chars: int = 0) -> None:
    """Raise NeedsWorker within `quickly` if the time is over or more than QUICK_CHARS have to be read."""
    deadline = _deadline.get()
    if deadline is not None and (chars > QUICK_CHARS or time.thread_time() > deadline):
        raise NeedsWorker


def check_algebra() -> None:
    """Raise NeedsAlgebra within `quickly`: an algebra system takes 0.3 s to load and may never finish."""
    if _deadline.get() is not None:
        raise NeedsAlgebra


class Unreadable(Exception):
    """An answer has no value; `reason` and `detail` say why."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason: Reason = reason
        self.detail = detail


class Budget:
    """The remaining budget of arithmetic for one answer. Every operation pays before it runs."""

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
