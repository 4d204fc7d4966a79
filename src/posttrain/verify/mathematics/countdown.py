r"""The numbers game: reach a target from given numbers with + - * /, using each number exactly once.

    >>> countdown("<answer>(25 - 4) * 3 = 63</answer>", target=63, numbers=[3, 4, 25]).reason
    'correct'

The expression is evaluated in exact fractions.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate
from time import perf_counter
from typing import Any

from posttrain.errors import DataError
from posttrain.verify.mathematics import places
from posttrain.verify.mathematics.extract import MAX_SEGMENT, final_segment
from posttrain.verify.mathematics.guard import MAX_CHARS, MAX_NESTING, Unreadable
from posttrain.verify.mathematics.sentences import without_dollars
from posttrain.verify.mathematics.verify import Message, hidden_characters, text_of
from posttrain.verify.verdict import Verdict, correct

MAX_DIGITS = 12
"""Maximum number of digits of a number in the game."""

_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_SPELLINGS = {
    "×": "*", "·": "*", "∗": "*", "÷": "/", "−": "-", "–": "-", "[": "(", "]": ")",
    "\\times": "*", "\\cdot": "*", "\\div": "/", "\\left": "", "\\right": "", "\\,": " ", "\\;": " ", "\\ ": " ",
}  # fmt: skip
_SPELLED = re.compile("|".join(map(re.escape, sorted(_SPELLINGS, key=len, reverse=True))))
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")


def countdown(
    completion: str | Sequence[Message],
    target: Any,
    numbers: Sequence[Any] | None = None,
    nums: Sequence[Any] | None = None,
    *,
    truncated: bool = False,
) -> Verdict:
    r"""Whether the expression in the `<answer>` tag or the box gives the target and uses exactly the given numbers.

    The columns are `target` and `numbers`, or `nums` as in the published datasets. `= target` may follow. A sign before
    a number is not an operation of the game, nor is writing two numbers next to each other.
    """
    start = perf_counter()
    goal, given = _game(target, numbers if numbers is not None else nums)
    verdict = _verdict(final_segment(text_of(completion)), goal, given, truncated=truncated)
    verdict.seconds = perf_counter() - start
    return verdict


def _verdict(segment: str, goal: Fraction, given: list[int], *, truncated: bool) -> Verdict:
    if len(segment) > MAX_SEGMENT:
        return Verdict(0.0, "too_large", detail=f"a text of {len(segment)} characters")
    shown = _shown(segment)
    if shown is None or len(shown) > 1:
        return Verdict(0.0, "ambiguous", detail="several expressions")
    if not shown:
        return Verdict(0.0, "truncated" if truncated else "no_answer", detail="no <answer> and no box")
    text = shown[0]
    if len(text) > MAX_CHARS:
        return Verdict(0.0, "too_large", extracted=text, detail=f"{len(text)} characters")
    if hidden_characters(text):
        return Verdict(0.0, "wrong", extracted=text, detail="invisible characters in the answer")
    expression, *results = without_dollars(text).split("=")
    try:
        value, used = _worked_out(expression)
        stated = [_worked_out(result)[0] for result in results]
    except (Unreadable, ZeroDivisionError) as error:
        reason = error.reason if isinstance(error, Unreadable) else "wrong"
        return Verdict(0.0, reason, extracted=text, detail=getattr(error, "detail", "division by zero"))
    if any(result != value for result in stated) or len(stated) > 1:
        return Verdict(0.0, "ambiguous", extracted=text, detail="the two sides differ")
    if sorted(used) != sorted(given):
        return Verdict(0.0, "wrong", extracted=text, detail=f"uses {sorted(used)} of {sorted(given)}")
    return correct(value == goal, text, detail="" if value == goal else f"gives {value}, not {goal}")


def _shown(segment: str) -> list[str] | None:
    """The different expressions in tags and boxes; None if there are too many."""
    boxes, tags = places.find_boxes(segment), places.find_tags(segment)
    if boxes is None or tags is None:
        return None
    if boxes and boxes[-1].closing < 0:
        return []
    shown = [segment[box.opening : box.closing] for box in boxes]
    shown += [tag.content for tag in tags if "\\boxed" not in tag.content]
    return list({"".join(text.split()): text.strip() for text in shown if text.strip()}.values())


def _game(target: Any, numbers: Sequence[Any] | None) -> tuple[Fraction, list[int]]:
    """The target and the numbers of a row. DataError if they are invalid."""
    try:
        if isinstance(numbers, str) or not numbers or isinstance(target, bool):
            raise ValueError
        goal, given = Fraction(str(target)), [Fraction(str(number)) for number in numbers]
        if any(number.denominator != 1 or not 0 <= number < 10**MAX_DIGITS for number in given):
            raise ValueError
        return goal, [int(number) for number in given]
    except (ValueError, ZeroDivisionError, TypeError):
        raise DataError(
            given=f"target {target!r} with numbers {numbers!r} is not a numbers game",
            allowed="a number as target and a list of whole numbers",
            fix="Correct or drop the row; the columns are `target` and `numbers` (or `nums`).",
        ) from None


def _worked_out(text: str) -> tuple[Fraction, list[int]]:
    """The value of an expression and the numbers in it. Raises Unreadable or ZeroDivisionError.

    Python's parser reads it without running anything. The game allows + - * / and whole numbers.
    """
    text = _SPELLED.sub(lambda match: _SPELLINGS[match.group()], _FRACTION.sub(r"((\1)/(\2))", text))
    if (longest := max(map(len, re.findall("[0-9]+", text)), default=0)) > MAX_DIGITS:
        raise Unreadable("too_large", f"a number of {longest} digits")
    if max(accumulate((sign == "(") - (sign == ")") for sign in text), default=0) > MAX_NESTING:
        raise Unreadable("too_large", "too many brackets within each other")
    text = re.sub("(?<![0-9])0+(?=[0-9])", "", " ".join(text.split()))
    try:
        tree = ast.parse(text, mode="eval") if re.fullmatch(r"[-+*/() 0-9]+", text) else None
    except (SyntaxError, MemoryError, RecursionError):
        tree = None
    if tree is None:
        raise Unreadable("wrong", f"{text[:20]!r} is not an expression of the game")
    used: list[int] = []
    return _value(tree.body, used), used


def _value(node: ast.expr, used: list[int]) -> Fraction:
    match node:
        case ast.Constant(value=int(number)):
            used.append(number)
            return Fraction(number)
        case ast.BinOp() if type(node.op) in _OPERATIONS:
            return _OPERATIONS[type(node.op)](_value(node.left, used), _value(node.right, used))
    raise Unreadable("wrong", f"{ast.unparse(node)[:20]!r} is not part of the game")
