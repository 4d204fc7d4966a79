"""Solutions of the numbers game. Its data has a target and numbers, but no solution that must be accepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import permutations
from typing import TYPE_CHECKING, Any

from posttrain.errors import DataError

if TYPE_CHECKING:
    from posttrain.types import Prompt

MOST_NUMBERS = 5
"""Maximum number of numbers: with more, the search takes seconds."""


def solution(columns: Mapping[str, Any]) -> str:
    """An expression that reaches `target` and uses each of `numbers` (or `nums`) once; empty if none was found.

    >>> solution({"target": 63, "nums": [3, 4, 25]}), solution({"target": 7, "numbers": [1, 1]}), solution({})
    ('3 * (25 - 4)', '', '')
    """
    numbers = next((columns[name] for name in ("numbers", "nums") if columns.get(name) is not None), ())
    try:
        goal = Fraction(str(columns.get("target")))
        terms = [(Fraction(int(number)), str(int(number))) for number in numbers]
    except (TypeError, ValueError):
        return ""
    found = _reached(goal, terms) if 1 < len(terms) <= MOST_NUMBERS else ""
    return found.removeprefix("(").removesuffix(")")


def solved(prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[str]]:
    """The prompts with a solution, and these solutions. DataError if there are none."""
    found = [(prompt, text) for prompt in prompts if (text := solution(prompt.columns))]
    if not found:
        raise DataError(
            given=f"no row has a target that its numbers can reach; its columns are {', '.join(prompts[0].columns)}",
            allowed=f"columns target and numbers (or nums), with at most {MOST_NUMBERS} numbers",
            fix="Correct the rows: an audit starts from an answer that the reward must accept.",
        )
    return [prompt for prompt, _ in found], [text for _, text in found]


def _reached(goal: Fraction, terms: Sequence[tuple[Fraction, str]]) -> str:
    if len(terms) == 1:
        return terms[0][1] if terms[0][0] == goal else ""
    for first, second in permutations(range(len(terms)), 2):
        (a, left), (b, right) = terms[first], terms[second]
        rest = [term for place, term in enumerate(terms) if place not in (first, second)]
        joined = [(a - b, f"({left} - {right})")]
        joined += [(a + b, f"({left} + {right})"), (a * b, f"({left} * {right})")] if first < second else []
        joined += [(a / b, f"({left} / {right})")] if b else []
        for term in joined:
            if text := _reached(goal, [*rest, term]):
                return text
    return ""
