"""Read the verdict from a judge's reply: from its last line, or from the JSON object that ends it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from posttrain.rewards.fuzzy import after_reasoning
from posttrain.rewards.judge.records import Verdict

POINTS = 5
"""Maximum number of points for a graded answer."""

_CHOICES = {"a": "A", "b": "B", "tie": "tie"}
_CORRECT = {"correct": float(POINTS), "incorrect": 0.0}

Parse = Callable[[str], Verdict | None]


def comparison(text: str) -> Verdict | None:
    """The verdict of a comparison; None without one.

    >>> comparison("The first is shorter.\\nVerdict: A"), comparison('{"verdict": "tie"}'), comparison("A is better.")
    ('A', 'tie', None)
    """
    return _CHOICES.get(_last_word(text, "verdict").lower())


def correctness(text: str) -> Verdict | None:
    """Full points for `correct`, 0 for `incorrect`; None without a verdict.

    >>> correctness("Both say 4.\\n**Verdict: correct**"), correctness("Verdict: correct, mostly")
    (5.0, None)
    """
    return _CORRECT.get(_last_word(text, "verdict").lower())


def points(text: str) -> Verdict | None:
    """The points of a graded answer; None without a valid number.

    >>> points("One more for clarity.\\nScore: 4"), points("Score: 4.5/5"), points("Score: 9")
    (4.0, 4.5, None)
    """
    number = re.fullmatch(rf"(\d+(?:\.\d+)?)(?: ?/ ?{POINTS})?", _last_word(text, "score"))
    return float(number[1]) if number and 0 <= float(number[1]) <= POINTS else None


def _last_word(text: str, name: str) -> str:
    """The value of `name` in the JSON object that ends a reply, else in its last line `name: value`; else empty."""
    text = after_reasoning(text)
    fence = re.fullmatch(r"```(?:json)?\s*(.*?)\s*```", text, re.DOTALL)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for candidate in ((fence[1] if fence else text), _last_object(text), *lines[-1:]):
        if (value := _in_json(candidate, name)) is not None:
            return value
    line = rf"[*_`]*{name}[*_`\s]*:[*_`\s]*(.+?)[*_`\s]*\.?[*_`\s]*"
    found = re.fullmatch(line, lines[-1], re.IGNORECASE) if lines else None
    return found[1] if found else ""


def _last_object(text: str) -> str:
    """The text from the last line that begins with a brace, without the end of a code fence.

    >>> _last_object('My verdict:\\n```json\\n{\\n  "score": 4\\n}\\n```')
    '{\\n  "score": 4\\n}'
    """
    text = text.removesuffix("```").rstrip()
    return text[text.rfind("\n{") + 1 :]


def _in_json(text: str, name: str) -> str | None:
    if not re.search(rf'"{name}"\s*:', text):  # exactly this spelling: any other may be quoted from an answer
        return None
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    value = found.get(name) if isinstance(found, dict) else None
    return str(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else None
