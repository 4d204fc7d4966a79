"""math-verify behind two functions. Importing this file loads sympy (0.3 s); calling it may never return.

Only reward workers and trusted input come here: the time-outs of math-verify are switched off, because they rely on
SIGALRM in the main thread and cannot interrupt a long integer operation. The worker's deadline, enforced by the
parent with SIGKILL, takes their place.

Only math-verify's LaTeX reader is used. Its reader of plain expressions passes model text to sympy's `parse_expr`,
which is Python's `eval`; what we hand over was already cut down to the final answer and is read as LaTeX.
"""

from __future__ import annotations

import logging
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify

from posttrain.errors import DataError
from posttrain.rewards.answers import final_answer
from posttrain.rewards.verifiers import math_gold

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that nobody watches the clock; our parent does
_READER = [LatexExtractionConfig()]


def verify_answer(completion: str, answer: Any) -> float:
    """`posttrain.rewards.math` where plain numbers do not settle it. DataError for a gold that is no mathematics."""
    gold = math_gold(answer)
    if all(isinstance(value, str) for value in _read(gold)):
        raise DataError(
            given=f"the gold answer {gold!r} is no mathematics that math-verify can read",
            allowed="a number or LaTeX",
            fix='Correct or drop the row, or use the reward "exact_match".',
        )
    given = final_answer(completion)
    return float(given is not None and equivalent(gold, given))


def equivalent(gold: str, given: str) -> bool:
    """Whether math-verify holds two LaTeX strings for equal. Not symmetric: it reads `given` in the light of `gold`."""
    return verify(_read(gold), _read(given), timeout_seconds=0)


def _read(latex: str) -> list[Any]:
    """Sympy expressions, or the string itself where there is no mathematics in it."""
    return parse(f"$${latex}$$", _READER, parsing_timeout=0)
