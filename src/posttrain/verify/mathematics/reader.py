"""The answer in a completion, and the readers that find it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from posttrain.verify.mathematics.compare import same
from posttrain.verify.mathematics.guard import NeedsAlgebra, Unreadable, check_deadline
from posttrain.verify.mathematics.options import Options
from posttrain.verify.mathematics.parse import parse
from posttrain.verify.mathematics.values import Value
from posttrain.verify.verdict import Reason

STRICT = Options()


@dataclass(frozen=True, slots=True)
class Extracted:
    """What a completion gives as its answer."""

    answer: str | None
    """As it was written; None when there is none, or not one."""
    candidates: int = 0
    """How many different answers were found."""
    reason: Reason | None = None
    """Why there is no answer."""
    listed: str | None = None
    """The different answers, joined by commas, where nothing but commas, "and" or "or" stood between them: that is an
    answer to a question that asks for a list, and to no other."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads answers and says which are the same."""

    options: Options = STRICT
    algebra: Callable[[str, str], bool] | None = None
    """Decides what takes symbolic algebra; without it such a question raises NeedsAlgebra."""
    estimates: bool = False
    """Whether an estimate may be the answer (`about 3.1`): where a tolerance says how good it has to be."""
    read: dict[str, Value | None] = field(default_factory=dict, compare=False)
    """Answers read earlier: an answer is compared with every other one."""

    def value(self, text: str) -> Value | None:
        """None for what has no value."""
        if text not in self.read:
            check_deadline()
            try:
                self.read[text] = parse(text, self.options)
            except Unreadable:
                self.read[text] = None
        return self.read[text]

    def same(self, one: str, other: str) -> bool:
        """Whether two answers have the same value, or the same spelling."""
        if one == other:
            return True
        check_deadline()
        first, second = self.value(one), self.value(other)
        if first is None or second is None:
            return False
        try:
            return self.equal(first, second, one, other)
        except Unreadable:
            return False

    def equal(self, gold: Value, given: Value, gold_text: str, given_text: str) -> bool:
        """`compare.same`, with algebra where it takes that. Unreadable where `given` leaves a computation undone."""
        verdict = same(gold, given, self.options)
        if verdict is None:
            if self.algebra is None:
                raise NeedsAlgebra
            verdict = self.algebra(gold_text, given_text)
        return verdict


def ambiguous(candidates: int, listed: list[str] | None = None, *, detail: str = "") -> Extracted:
    """Several answers; `listed`: as a list, where they are one."""
    joined = ", ".join(listed) if listed else None
    return Extracted(
        None, candidates, reason="ambiguous", listed=joined, detail=detail or f"{candidates} different answers"
    )
