"""Rows for audits: sums whose answers all differ, sums with few answers, and small programming tasks."""

from pathlib import Path
from typing import Any

PLANTED = Path(__file__).parent / "planted"


def sums(number: int = 60) -> list[dict[str, Any]]:
    """Rows whose answers have one to four digits and are all different."""
    return [
        {"prompt": f"What is {17 * n} and {20 * n + 3} together?", "answer": str(37 * n + 3)} for n in range(number)
    ]


def few_answers(number: int = 60) -> list[dict[str, Any]]:
    """Rows in which two of every five answers are 4."""
    return [row | {"answer": "4" if n % 5 < 2 else row["answer"]} for n, row in enumerate(sums(number))]


def tasks(number: int = 60) -> list[dict[str, Any]]:
    """Programs with tests that detect any change of the program."""
    return [
        {
            "prompt": f"Write a function f that multiplies by {n + 2} and adds {n}.",
            "code": f"def f(x):\n    if x < 0:\n        return {n}\n    return {n + 2} * x + {n}\n",
            "test_list": [f"assert f({x}) == {(n + 2) * x + n if x >= 0 else n}" for x in (0, 1, 5, -1, -7)],
        }
        for n in range(number)
    ]


def weak_tasks(number: int = 60) -> list[dict[str, Any]]:
    """The same programs with one test, which most changed programs pass."""
    return [row | {"test_list": ["assert f(0) is not ''"]} for row in tasks(number)]


def planted(name: str) -> str:
    """`file:function` of a planted reward, which works from any folder."""
    file, _, function = name.partition(":")
    return f"{PLANTED / file}.py:{function}"
