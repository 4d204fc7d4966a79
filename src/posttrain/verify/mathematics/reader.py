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
    """The answer that a completion gives."""

    answer: str | None
    """The answer as written; None if there is none, or more than one."""
    candidates: int = 0
    """Number of different answers that were found."""
    reason: Reason | None = None
    """The reason why there is no answer."""
    listed: str | None = None
    """The different answers, joined by commas, if only commas, "and" or "or" separate them. This can answer only a
    question that asks for a list."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads answers and decides which are the same."""

    options: Options = STRICT
    algebra: Callable[[str, str], bool] | None = None
    """Decides questions that need symbolic algebra. Without it, such a question raises NeedsAlgebra."""
    estimates: bool = False
    """Whether an estimate may be the answer (`about 3.1`), because a tolerance limits its error."""
    read: dict[str, Value | None] = field(default_factory=dict, compare=False)
    """Cache of answers that were read, because each answer is compared with every other one."""

    def value(self, text: str) -> Value | None:
        """The value of a text; None if it has none."""
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
        """`compare.same`, with algebra if necessary. Unreadable if `given` leaves a computation undone."""
        verdict = same(gold, given, self.options)
        if verdict is None:
            if self.algebra is None:
                raise NeedsAlgebra
            verdict = self.algebra(gold_text, given_text)
        return verdict


def ambiguous(candidates: int, listed: list[str] | None = None, *, detail: str = "") -> Extracted:
    """The result for several answers. `listed` has them if they form a list."""
    joined = ", ".join(listed) if listed else None
    return Extracted(
        None, candidates, reason="ambiguous", listed=joined, detail=detail or f"{candidates} different answers"
    )
