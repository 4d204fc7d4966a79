"""A task: find which of three programs turns three digits into a number. The model can run one and correct itself.

`3 4 5 17` asks for `print(3*4+5)`, in one of the forms below. The values of the forms always differ. Only the last turn
counts: it scores if its expression gives the number, whatever was tried before.
"""

from __future__ import annotations

import random
from itertools import product
from typing import Any

FORMS = ("{}+{}+{}", "{}+{}*{}", "{}*{}*{}")
DIGITS = range(2, 10)


def value(expression: str) -> int:
    """The value of an expression in one of the forms.

    >>> value("3+4*5")
    23
    """
    total = 0
    for term in expression.split("+"):
        factors = 1
        for digit in term.split("*"):
            factors *= int(digit)
        total += factors
    return total


def rows() -> list[dict[str, str]]:
    """All problems, in a fixed random order."""
    found = []
    for digits in product(DIGITS, repeat=3):
        expressions = [form.format(*digits) for form in FORMS]
        if len(set(map(value, expressions))) == len(FORMS):
            asked = " ".join(map(str, digits))
            found += [{"prompt": f"{asked} {value(one)}", "answer": one} for one in expressions]
    random.Random(0).shuffle(found)
    return found


def right(completion: list[dict[str, Any]], answer: str, **row: Any) -> float:
    """Whether the last turn is the right expression."""
    return float(completion[-1]["content"].strip() == answer)


def tried_first(completion: list[dict[str, Any]], answer: str, **row: Any) -> float:
    """Whether the first turn already ran the program of the answer. This is measured with weight 0."""
    calls = completion[0].get("tool_calls") or []
    return float(any(call["function"]["arguments"].get("code") == f"print({answer})" for call in calls))


def best_score() -> float:
    """The score of the optimal policy, which tries the middle form and sees if its value is too small or too large."""
    return 1.0
