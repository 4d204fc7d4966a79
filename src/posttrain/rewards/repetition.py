"""A penalty for repetitive text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from posttrain.errors import ConfigError
from posttrain.verify.verdict import Verdict

Unit = Literal["tokens", "words"]


def repetition(
    completion: str,
    completion_ids: Sequence[int],
    *,
    n: int = 4,
    penalty: float = 1.0,
    unit: Unit = "tokens",
) -> Verdict:
    """-penalty (1 - distinct n-grams / n-grams); 0 for fewer than n tokens, or words (arXiv:2502.03373).

    White space separates words, and their case is ignored.

    >>> float(repetition("", [5, 5, 5, 5, 5], n=2)), float(repetition("", [1, 2, 3, 1, 2, 3, 1], n=3))
    (-0.75, -0.4)
    """
    if n < 1 or penalty < 0 or unit not in get_args(Unit):
        raise ConfigError(
            given=f"repetition with n = {n}, penalty = {penalty}, unit = {unit!r}",
            allowed="n of at least 1, a penalty of at least 0 (it is subtracted), and unit tokens or words",
        )
    items: Sequence[object] = completion.casefold().split() if unit == "words" else completion_ids
    grams = [tuple(items[start : start + n]) for start in range(len(items) - n + 1)]
    if not grams:
        return Verdict(0.0, "too_short")
    repeated = len(grams) - len(set(grams))
    return Verdict(
        -penalty * repeated / len(grams),
        "repeated" if repeated else "varied",
        detail=f"{repeated} of {len(grams)} {n}-grams occurred before",
    )
