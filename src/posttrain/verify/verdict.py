"""The verdict of a verifier on one completion: a number together with its reason.

>>> verdict = Verdict(1.0, "correct", extracted="18")
>>> verdict == 1.0, verdict.reason, 0.5 * verdict
(True, 'correct', 0.5)
>>> Verdict(None, "timeout").score is None
True
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from posttrain.errors import RewardError

Reason = Literal[
    "correct",
    "partial",
    "wrong",
    "no_answer",
    "ambiguous",
    "unevaluated",
    "too_large",
    "truncated",
    "timeout",
    "error",
    "not_applicable",
]
"""Why a completion has its score.

    correct         the answer is right
    partial         part of the answer is right: some of the tests or rules
    wrong           an answer was found, and it differs from the right one
    no_answer       no answer was found
    ambiguous       several different answers were found, or one that contradicts itself
    unevaluated     the answer is a computation instead of its result: 123 x 456, a sum, the question again
    too_large       the answer would be too expensive to evaluate, and the verifier did not try
    truncated       the completion was truncated before it gave an answer
    timeout         the judged program ran out of time (score 0), or the verifier did (no score)
    error           the judged program failed (score 0), or the verifier did (no score)
    not_applicable  the verifier does not apply to this completion (no score)
"""
REASONS: tuple[str, ...] = get_args(Reason)

_REASON = re.compile(r"\w[\w -]{0,39}")

MAX_EXTRACTED = 500
"""Maximum length of an extracted answer and of a detail, in characters."""


def _carried(name: str) -> Callable[..., Any]:
    """An operation of float that returns a verdict without a score unchanged, with its reason, instead of nan."""
    plain = getattr(float, name)

    def operation(self: Verdict, *others: Any) -> Any:
        result = plain(self, *others)
        if result is NotImplemented:
            return result
        return next((one for one in (self, *others) if isinstance(one, Verdict) and one.score is None), result)

    return operation


class Verdict(float):
    """A score together with its reason. It is a float, so that rewards can use it: `0.9 * math(...) + ...`.

    A verdict has no score (`score` is None) if the verifier itself failed or does not apply. It then compares like nan,
    has no score in sums and products either, and raises RewardError if it is used as a truth value.
    """

    __add__, __radd__ = _carried("__add__"), _carried("__radd__")
    __sub__, __rsub__ = _carried("__sub__"), _carried("__rsub__")
    __mul__, __rmul__ = _carried("__mul__"), _carried("__rmul__")
    __truediv__, __rtruediv__ = _carried("__truediv__"), _carried("__rtruediv__")
    __neg__ = _carried("__neg__")

    reason: str
    """One of `Reason`, or the verifier's own word."""
    extracted: str | None
    """The judged answer, as found in the completion."""
    seconds: float
    """Wall-clock seconds for the verdict; 0 if not measured."""
    detail: str
    """More information for the user: the test that failed, the text that could not be read."""

    def __new__(
        cls,
        score: float | None,
        reason: str,
        *,
        extracted: str | None = None,
        seconds: float = 0.0,
        detail: str = "",
    ) -> Verdict:
        if not isinstance(reason, str) or not _REASON.fullmatch(reason):
            raise RewardError(
                given=f"a verdict with the reason {str(reason)[:60]!r}",
                allowed="one or a few words of letters, digits, _, - and spaces: the share of each reason is a metric",
                fix="Put text that changes with the completion into `detail` or `extracted`.",
            )
        verdict = super().__new__(cls, math.nan if score is None else score)
        verdict.reason = reason
        verdict.extracted = None if extracted is None else str(extracted)[:MAX_EXTRACTED]
        verdict.seconds = seconds
        verdict.detail = detail[:MAX_EXTRACTED]
        return verdict

    @property
    def score(self) -> float | None:
        """The score as a float; None without one."""
        return None if math.isnan(self) else float(self)

    def __bool__(self) -> bool:
        if self.score is None:  # nan counts as true: `if math(...)` would reward a failed verifier
            raise RewardError(
                given=f"a verdict without a score ({self.reason}) is used as a truth value",
                fix="Return it unchanged, or test `verdict.score is None` first.",
            )
        return super().__bool__()

    def to_json(self) -> dict[str, Any]:
        """The verdict as plain JSON, which `from_json` reads."""
        return {
            "score": self.score,
            "reason": self.reason,
            "extracted": self.extracted,
            "seconds": self.seconds,
            "detail": self.detail,
        }

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> Verdict:
        more = {name: fields[name] for name in ("extracted", "seconds", "detail")}
        return Verdict(fields["score"], fields["reason"], **more)

    def __repr__(self) -> str:
        found = "" if self.extracted is None else f", extracted={self.extracted!r}"
        detail = f", detail={self.detail!r}" if self.detail else ""
        return f"Verdict({self.score}, {self.reason!r}{found}{detail})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Verdict.from_json, (self.to_json(),))


def correct(right: bool, extracted: str | None = None, *, detail: str = "") -> Verdict:
    """1 for a right answer, 0 for a wrong one."""
    return Verdict(float(right), "correct" if right else "wrong", extracted=extracted, detail=detail)
