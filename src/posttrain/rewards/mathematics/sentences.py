"""What stands in a sentence: its formulas and numbers, which of them it claims, and whether it is prose at all."""

from __future__ import annotations

import re

from posttrain.rewards.mathematics import places
from posttrain.rewards.mathematics.prose import NUMBER

HEDGE = r"(?:or|maybe|perhaps|possibly|alternatively|otherwise)\b"
FORMULA = re.compile(
    r"(?<!\\)\$\$(?P<a>[^$]+)\$\$|(?<!\\)\$(?P<b>(?:[^$\\]|\\.)+)\$|\\\((?P<c>.+?)\\\)|\\\[(?P<d>.+?)\\\]", re.DOTALL
)
AMOUNTS = re.compile(r"\$\s*[0-9][0-9.,]*\s+[a-z]{2,}")
"""The beginning of `$5 and $6`, which is no formula."""
_DENIAL = (
    r"(?:\bnot|n['’]t|\bnever|\bcannot|\bneither|\bnor|\bno\s+longer|\bother\s+than|\banything\s+but|\bexcept|"
    r"\binstead\s+of|\brather\s+than|\bfar\s+from|\bdifferent\s+from|\bwrong\s+to\s+say|\bdoubt|\bdeny)"
)
_BARE = r"(?:\s|[$*_`\"'“(\[{:]|\\[(\[]|\\text(?:bf)?\{)"
_DENIED_BEFORE = re.compile(
    rf"{_DENIAL}(?:{_BARE}+(?:be|is|it|it's|that|equal|equals|to|exactly|simply|just|really|actually|the|a|an|my|our|"
    rf"final|correct|right|number|value|answer|result|say|called)(?![A-Za-z]))*+{_BARE}*$",
    re.IGNORECASE,
)
_DENIED_BEHIND = re.compile(
    r"(?:[\s$*_`\"'”)\]},.;:—-]|\\[)\]])*(?:(?:but|and|which|that|it|this)\s+)*(?:(?:is|was|are|would\s+be|seems|looks|can|could|must)\s*)?"
    r"(?:(?:not|n['’]t|never)\s+(?:be\s+)?(?:the|right|correct|true|my|our|it\b|what|possible|an?\s+answer)|"
    r"(?:(?<=is\s)|(?<=was\s)|(?<=be\s)|(?<=seems\s)|(?<=looks\s))(?:wrong|incorrect|false|untrue|impossible|mistaken))",
    re.IGNORECASE,
)
_TASK = re.compile(
    r"(?:[\s*_#>]|\\\[)*(?:(?:please|now|first|then|let\s+us|let's|hence|problem|question|task|exercise|q|[0-9]+)\b[\s:.,)*_]*)*"
    r"(?:find|compute|evaluate|simplify|determine|calculate|express|write|factor|factori[sz]e|expand|convert|rationali[sz]e|"
    r"solve|prove|show|estimate|round|enter|give|list|state|what|which|who|when|where|why|how|is|are|does|do|can|could)\b",
    re.IGNORECASE,
)
"""How a question or an order begins."""
_OPERATION = re.compile(r"\s*(?:[-+*/×÷=^]|x\s|\\times|\\cdot)")
_NOT = re.compile(r"\bnot\b[\s\w]{0,12}$", re.IGNORECASE)


def is_prose(sentence: str) -> bool:
    """Whether words stand around the formulas: more than the unit of a number."""
    words = re.findall(r"(?<![\\A-Za-z])[A-Za-z]{3,}", FORMULA.sub(" ", sentence))
    return len(words) > 1 or (len(words) == 1 and FORMULA.search(sentence) is not None)


def without_dollars(text: str) -> str:
    """Without the delimiters of formulas; a currency sign stays."""

    def bare(match: re.Match[str]) -> str:
        return match.group() if AMOUNTS.match(match.group()) else match[match.lastgroup or 0].strip()

    return FORMULA.sub(bare, text).strip()


def is_denied(text: str, start: int, end: int) -> bool:
    """Whether the words around an answer deny it: `not 7`, `isn't 7`, `7 is wrong`.

    >>> is_denied("It is not 7.", 10, 11), is_denied("It is not odd, so 7.", 18, 19), is_denied("7 is not it", 0, 1)
    (True, False, True)
    """
    before = text[max(start - 120, 0) : start]
    return bool(_DENIED_BEFORE.search(before) or _DENIED_BEHIND.match(text, end, end + 80))


def is_task(sentence: str) -> bool:
    r"""Whether a sentence asks or orders, and so concludes nothing.

    >>> is_task("Simplify $\\sqrt{242}$"), is_task("What is 3 + 4?"), is_task("So it is 7")
    (True, True, False)
    """
    return _TASK.match(sentence) is not None or sentence.rstrip(" *_").endswith("?")


def is_offered(clause: str, start: int, end: int) -> bool:
    """Whether a number is one of several that are offered: `or 7`, `7, maybe`."""
    return bool(re.search(rf"\b{HEDGE}\W*$", clause[:start]) or re.match(rf"\W*{HEDGE}", clause[end:]))


def is_claimed(clause: str, start: int, end: int, pattern: re.Pattern[str]) -> bool:
    """Whether a number is said to be the result: `is 12`, `= 12`; not the 9 of `makes 9 * 2`."""
    goes_on = _OPERATION.match(clause, end)
    return bool(not goes_on and pattern.search(clause, 0, start) and not _NOT.search(clause[:start]))


def atoms_of(sentence: str) -> list[tuple[str, int, int]]:
    """The formulas, and the numbers outside of them, with where they start and end."""
    found: list[tuple[str, int, int]] = []
    at = 0
    for formula in FORMULA.finditer(sentence):
        content = formula[formula.lastgroup or 0]
        if AMOUNTS.match(formula.group()):
            continue
        found += _numbers(sentence, at, formula.start())
        at = formula.end()
        percent = places.PERCENT_BEHIND.match(sentence, at)
        at = percent.end() if percent else at
        found.append((content.strip() + ("\\%" if percent else ""), formula.start(), at))
    return found + _numbers(sentence, at, len(sentence))


def _numbers(sentence: str, start: int, end: int) -> list[tuple[str, int, int]]:
    return [(number.group().strip(), number.start(), number.end()) for number in NUMBER.finditer(sentence, start, end)]


def pattern_of(sentence: str, atoms: list[tuple[str, int, int]]) -> str:
    """A sentence with its numbers and formulas left out."""
    pieces, at = [], 0
    for _, start, end in atoms:
        pieces.append(sentence[at:start])
        at = end
    return "#".join([*pieces, sentence[at:]])
