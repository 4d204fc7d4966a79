"""Three digits are to give a number: in which of three programs? Whoever runs one first can correct himself.

`3 4 5 17` asks for `print(3*4+5)`, of the forms below; the values of a row are all different. The score is that of the
last turn: whether the expression it says gives the number, whatever was tried before.
"""

from __future__ import annotations

import random
from itertools import product
from typing import Any

FORMS = ("{}+{}+{}", "{}+{}*{}", "{}*{}*{}")
DIGITS = range(2, 10)


def value(expression: str) -> int:
    """What one of the forms gives.

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
    """Every problem, shuffled, always alike."""
    found = []
    for digits in product(DIGITS, repeat=3):
        expressions = [form.format(*digits) for form in FORMS]
        if len(set(map(value, expressions))) == len(FORMS):
            asked = " ".join(map(str, digits))
            found += [{"prompt": f"{asked} {value(one)}", "answer": one} for one in expressions]
    random.Random(0).shuffle(found)
    return found


def right(completion: list[dict[str, Any]], answer: str, **row: Any) -> float:
    """Does the last turn say the expression?"""
    return float(completion[-1]["content"].strip() == answer)


def tried_first(completion: list[dict[str, Any]], answer: str, **row: Any) -> float:
    """Was the program of the first turn that of the answer already? It is counted, and pays nothing."""
    calls = completion[0].get("tool_calls") or []
    return float(any(call["function"]["arguments"].get("code") == f"print({answer})" for call in calls))


def best_score() -> float:
    """That of the optimal policy, which tries the middle form and sees whether its value is too small or too large."""
    return 1.0
