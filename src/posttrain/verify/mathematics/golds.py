r"""Gold answers: the content of a row's column, as text that can be read.

An unusable gold answer is an error in the data, whatever the completion is. It is found before training starts.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from numbers import Integral
from typing import Any

from posttrain.errors import DataError
from posttrain.verify.mathematics import places
from posttrain.verify.mathematics.extract import Reader, extract, final_segment
from posttrain.verify.mathematics.guard import NeedsAlgebra, Unreadable
from posttrain.verify.mathematics.options import Options
from posttrain.verify.mathematics.parse import parse
from posttrain.verify.mathematics.sentences import FORMULA, without_dollars
from posttrain.verify.mathematics.tokens import tokenise
from posttrain.verify.mathematics.values import Value


def gold_text(answer: Any) -> str:
    """The gold answer as text. A GSM8K solution is cut to the text after `####`, and a number loses a trailing `.0`.

    >>> gold_text("16 - 3 = 13 eggs\\n#### 13"), gold_text(145.0)
    ('13', '145')
    """
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)
    elif isinstance(answer, Integral) and not isinstance(answer, bool):
        answer = int(answer)  # one of NumPy's integers
    if isinstance(answer, str):
        text = answer.rpartition("####")[2].strip()
    elif isinstance(answer, int | float) and not isinstance(answer, bool) and abs(answer) < float("inf"):
        text = str(answer)
    else:
        text = ""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise DataError(
            given=f"the gold answer {answer!r} contains half of a character (a lone surrogate)",
            allowed="text that can be written as UTF-8",
            fix="Read the data again with the encoding that it was written in.",
        )
    if not text:
        raise DataError(
            given=f"the gold answer is {answer!r}",
            allowed="a text that is not empty, or a number",
            fix="Correct or drop the row; `data.answer` names the column that holds the gold answer.",
        )
    return text


_NO_WORD = re.compile(r"[^\w\\]*")
"""Text that may be between the boxes of a single list."""


def math_gold(answer: Any, *, every_box: bool = False) -> str:
    r"""The LaTeX of a gold answer, without its box or dollar signs. A full solution is cut to its final answer. With
    `every_box`, that is all of its boxes if only signs are between them.

    >>> math_gold("$\\frac{1}{2}$."), math_gold(r"Hence \boxed{(2, 3)}."), math_gold("x^2 + 1")
    ('\\frac{1}{2}', '(2, 3)', 'x^2 + 1')
    """
    text = gold_text(answer)
    if "\\boxed" in text or "\\fbox" in text:
        segment = final_segment(text)
        boxes = [box for box in places.find_boxes(segment) or [] if box.closing >= 0]
        contents = [content for box in boxes if (content := places.box_content(segment, box))]
        if not contents:
            raise unusable(text, "its box is empty")
        if every_box and all(_NO_WORD.fullmatch(segment, a.closing + 1, b.start) for a, b in pairwise(boxes)):
            return ", ".join(dict.fromkeys(contents))
        return contents[-1] if len(set(contents)) == 1 else _listed(text) or contents[-1]
    if FORMULA.match(text):
        return without_dollars(text).rstrip(".,; ")
    formulas = [formula[formula.lastgroup or 0].strip() for formula in FORMULA.finditer(text)]
    if formulas:  # a solution in prose
        return formulas[-1]
    return text.rstrip(".,; ")


def _listed(text: str) -> str | None:
    """The boxes of a solution as one list, or None."""
    try:
        return extract(text, Reader()).listed
    except NeedsAlgebra:
        return None


@lru_cache(maxsize=4096)
def read_gold(text: str, options: Options) -> Value:
    """The value of a gold answer. DataError if it has none."""
    try:
        return parse(text, options, gold=True)
    except Unreadable as unreadable:
        raise unusable(text, unreadable.detail or unreadable.reason) from None


@lru_cache(maxsize=4096)
def require_whole(text: str) -> None:
    """Raise DataError for a gold that the grammar cannot read and that is only a part of a formula. Of any other gold
    that it cannot read, the same text is right."""
    texts = [token.text for token in tokenise(text)]
    depth = lowest = 0
    for token in texts:
        depth += (token == "{" or token.startswith("\\begin{")) - (token == "}" or token.startswith("\\end{"))
        lowest = min(lowest, depth)
    if depth or lowest or not any(map(str.isalnum, "".join(texts))):
        raise unusable(text, "the grammar cannot read it, and it is not a whole formula")


def unusable(text: str, why: str) -> DataError:
    shown = text if len(text) <= 80 else text[:77] + "..."
    return DataError(
        given=f"the gold answer {shown!r} cannot be read: {why}",
        allowed="a number, LaTeX, a choice or a few words",
        fix='Correct or drop the row, or use the reward "exact_match".',
    )
