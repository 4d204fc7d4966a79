"""By what a majority is counted: the answer inside a completion, in a form in which equal answers are equal texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from posttrain.rewards.answers import final_answer, last_number, single_number
from posttrain.rewards.verifiers import BUILTINS

if TYPE_CHECKING:
    from posttrain.rewards import RewardSet

Extract = Callable[[str], str | None]
"""Text of a completion -> its answer, or None when it has none."""


def extract_for(rewards: RewardSet) -> Extract:
    """The reading of answers that goes with the first built-in verifier of the rewards.

    `numeric` and `math` read a final number or formula, `exact_match` with `extract` its match. Without a verifier that
    reads an answer the whole completion is the answer.
    """
    for component in rewards.components:
        pattern = component.settings.get("extract")
        if component.builtin is BUILTINS["numeric"]:
            return numeric_answer
        if component.builtin is BUILTINS["math"]:
            return math_answer
        if component.builtin is BUILTINS["exact_match"] and isinstance(pattern, str):
            return lambda text: _last_match(pattern, text)
    return lambda text: text


def numeric_answer(text: str) -> str | None:
    """The last number: `1,234`, `1234.0` and `2468/2` are the same vote.

    >>> numeric_answer("that makes $1,234.0")
    '1234'
    """
    number = last_number(text)
    return None if number is None else f"{number.value}{'%' if number.percent else ''}"


def math_answer(text: str) -> str | None:
    r"""The final answer: as a number where it is one, else as it was written.

    >>> math_answer(r"so \boxed{\frac{2}{4}}"), math_answer(r"so \boxed{x^2}")
    ('1/2', 'x^2')
    """
    answer = final_answer(text)
    number = None if answer is None else single_number(answer)
    return answer if number is None else f"{number.value}{'%' if number.percent else ''}"


def normalise(answer: str | None) -> str | None:
    """Surrounding space, case and runs of space do not make a different answer; an empty one is none.

    >>> normalise("  Forty  Two ")
    'forty two'
    """
    return " ".join((answer or "").split()).casefold() or None


def _last_match(pattern: str, text: str) -> str | None:
    matches = list(re.finditer(pattern, text, re.DOTALL))
    return (matches[-1][1] if matches[-1].re.groups else matches[-1][0]) if matches else None
