"""What stands in a sentence: its formulas and numbers, which of them it claims, and whether it is prose at all."""

from __future__ import annotations

import re

from posttrain.verify.mathematics import places
from posttrain.verify.mathematics.prose import NUMBER

HEDGE = r"(?:or|maybe|perhaps|possibly|alternatively|otherwise)\b"
FORMULA = re.compile(
    r"(?<!\\)\$\$(?P<a>[^$]+)\$\$|(?<!\\)\$(?P<b>(?:[^$\\]|\\.)+)\$|\\\((?P<c>.+?)\\\)|\\\[(?P<d>.+?)\\\]", re.DOTALL
)
AMOUNTS = re.compile(r"\$\s*[0-9][0-9.,]*\s+[a-z]{2,}|\$\s*[0-9][^$\\]*[-+*/=×]\s*\$(?=[0-9]|$)")
"""The beginning of `$5 and $6` and of `$2 = $2`, which are no formulas."""
_LETTER = re.compile(r"^\W*[A-Za-z][).:]\s*|\([a-z]\)")
"""What tells the parts of a list: `a)`, `B.`, `(c)`."""
_OPERATION = re.compile(r"\s*(?:[-+*/×÷=^]|x\s|\\times|\\cdot)")
_NOT = re.compile(r"\bnot\b[\s\w]{0,12}$", re.IGNORECASE)


def is_prose(sentence: str) -> bool:
    """Whether words stand around the formulas: more than the unit of a number."""
    words = re.findall(r"(?<![\\A-Za-z])[A-Za-z]{3,}", FORMULA.sub(" ", sentence))
    return len(words) > 1 or (len(words) == 1 and (FORMULA.search(sentence) is not None or " is " in sentence))


def without_dollars(text: str) -> str:
    """Without the delimiters of formulas; a currency sign stays."""

    def bare(match: re.Match[str]) -> str:
        return match.group() if AMOUNTS.match(match.group()) else match[match.lastgroup or 0].strip()

    return FORMULA.sub(bare, text).strip()


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
    """A sentence with its numbers, formulas and the letters of a list left out."""
    pieces, at = [], 0
    for _, start, end in atoms:
        pieces.append(sentence[at:start])
        at = end
    return _LETTER.sub("", "#".join([*pieces, sentence[at:]]))
