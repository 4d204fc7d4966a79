r"""Where the final answer of a completion stands, and which number it is. Plain strings in, exact fractions out.

A completion has ONE final answer. The first of these that is there decides:

1. the content of the last `\boxed{...}`: a percent sign right behind it belongs to it, one that is never closed is
   empty, and boxes joined by nothing but punctuation, "and" or "or" are one list;
2. what follows the last `####`, "answer is" or "answer:", up to the end of the sentence;
3. whichever ends last: the last formula (`$...$`, `\(...\)`, `\[...\]`) or the last number.

Only what follows the last `</think>` is read, and nothing behind a `<think>` that is still open. Every scan is linear
in the length of the text: a model that writes 100,000 dollar signs costs milliseconds. Nothing here evaluates text.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

MAX_DIGITS = 400
"""A longer number is not read: no answer needs it, and converting it would cost quadratic time."""

MAX_JOINED_FORMULAS = 16
"""Of more formulas in a row the last 16 count: looking for each costs a pass over the text."""

_DELIMITERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))
_MARKER = re.compile(r"####|\banswer\s{1,3}is\b\s?:?|\banswer\s?:", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\n|[.!?](?=\s|$)")
_PERCENT_BEHIND = re.compile(r"\s?\$?\s?(?:\\?%|percent\b|pct\b)")
_BRACE_OR_BOX = re.compile(r"\\boxed(?![A-Za-z])\s*+\{?|\\.|[{}]", re.DOTALL)
_JOINT = re.compile(
    r"(?:[\s$,;&]|\\[,;!()\[\]]|\\q?quad(?![a-z])|\\text\s?\{\s*(?:and|or)\s*\}|(?<!\w)(?:and|or)(?!\w))*+"
)

_DIGITS = r"(?:[0-9]++(?:,[0-9]++)*+(?:\.[0-9]++)?+|\.[0-9]++)(?:[eE][-+]?[0-9]{1,3}(?![0-9]))?+"
_NUMBER = re.compile(
    r"(?P<sign>(?<![\w)\]}])[-−+])?(?:\\?[$€£¥₹]\s?)?(?P<inner_sign>(?<=[$€£¥₹])[-−+])?"
    r"(?<!\w)(?<![0-9]\.)(?:"
    r"(?P<latex_whole>[0-9]++)?\s?\\[dt]?frac\s?(?:\{\s?(?P<a>-?[0-9]++)\s?\}\s?\{\s?(?P<b>[0-9]++)\s?\}|(?P<a1>[0-9])(?P<b1>[0-9]))"
    r"|(?P<whole>[0-9]++)[ ](?P<c>[0-9]++)/(?P<d>[0-9]++)(?![0-9.,]*/)"
    rf"|(?P<plain>{_DIGITS})(?P<slashes>(?:\s?/\s?{_DIGITS})*+)"
    r")(?P<percent>\s?(?:\\?%|percent\b|pct\b))?"
)
_GROUPED = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+")
_TEXT_GROUP = re.compile(r"\\(?:text|mathrm|mbox|textbf)\s?\{([^{}]*)\}(?:\s?\^\s?\{?[0-9]\}?)?")
_UNIT_POWER = re.compile(r"(?<![A-Za-z])[A-Za-z]{1,3}\s?\^\s?\{?[23]\}?(?![0-9])")
_OPERATOR = re.compile(r"[-+*/^]")
_VARIABLE = re.compile(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])")
_SEVERAL = re.compile(r"[,;](?![0-9])|\b(?:and|or)\b")
_SPACED_MINUS = re.compile(r"^\s*[-−]\s+")
_FORMULA = re.compile(r"[0-9{}\\^+*×·÷!√_<>]|(?<![A-Za-z])/|/(?![A-Za-z])|(?<!\w)[-−]|[-−](?![A-Za-z]{2})")
_GLUED_LETTER = re.compile(r"[A-Za-z](?![A-Za-z])")


class Number(NamedTuple):
    """A number as it was written: `7%` is the value 7 with the percent sign."""

    value: Fraction
    percent: bool = False


def after_thinking(text: str) -> str:
    """The part that is meant as the answer: behind the last `</think>`, before a `<think>` that was never closed."""
    return text.rpartition("</think>")[2].partition("<think>")[0]


def final_answer(text: str) -> str | None:
    r"""The one final answer as it was written, or None. See the head of this file for the rules.

    >>> final_answer(r"First \boxed{3}, no: \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    >>> final_answer("She sells 9 eggs.\n#### 18")
    '18'
    >>> final_answer("so there are 3 ducks and 5 geese")
    '5'
    """
    text = after_thinking(text)
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed.strip() or None
    marker = _last(_MARKER, text)
    if marker is not None:
        stated = _stated(text[marker.end() :])
        if stated:
            return stated
    formula, formula_end = _last_formulas(text)
    number = _last(_NUMBER, text)
    if number is not None and number.end() > formula_end:
        return number.group().strip()
    return formula or None


def last_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{...}`; empty when it is never closed, None when there is no box.

    Boxes that only punctuation, "and" or "or" separates are one list: nobody is paid for the last of ten boxes.

    >>> last_boxed(r"\boxed{\{1, 2\}}, no: \boxed{50}\%")
    '50\\%'
    >>> last_boxed(r"$\boxed{6}$ or $\boxed{7}$")
    '6, 7'
    """
    boxes = _boxes(text)
    if not boxes:
        return None
    start, opening, closing = boxes.pop()
    if closing < 0:
        return ""
    percent = _PERCENT_BEHIND.match(text, closing + 1)
    contents = [text[opening:closing] + ("\\%" if percent else "")]
    while boxes and 0 <= boxes[-1][2] < start and _JOINT.fullmatch(text, boxes[-1][2] + 1, start):
        start, opening, closing = boxes.pop()
        contents.append(text[opening:closing])
    return ", ".join(dict.fromkeys(content.strip() for content in reversed(contents)))


def last_formula(text: str) -> str:
    r"""The content of the last `$...$`, `$$...$$`, `\(...\)` or `\[...\]`; empty when there is none."""
    return _last_formulas(text)[0]


def single_number(text: str) -> Number | None:
    r"""The number that a final answer states, or None when it states none, several, or a formula.

    A unit, a currency sign and words may stand around the number. Of `name = value` the value counts; of a chain
    `8 = 7`, whose sides differ, nothing does.

    >>> single_number(r"\$1{,}234.50 \text{ dollars}")
    Number(value=Fraction(2469, 2), percent=False)
    >>> single_number(r"x = 3\frac{1}{2}").value
    Fraction(7, 2)
    >>> single_number("7 or 8"), single_number("8 = 7"), single_number("3x + 1")
    (None, None, None)
    """
    *named, stated = _normalised(text).split("=")
    if any(_is_equation(side) for side in named) or (len(named) > 1 and _SEVERAL.search(text)):
        return None
    number = _lone_number(stated)
    if number is None or any(_lone_number(side) not in (None, number) for side in named):
        return None
    return number


def contradicts_itself(text: str) -> bool:
    """Whether a chain of equations gives two different numbers, as in `8 = 7`.

    >>> contradicts_itself("x = 8 = 7"), contradicts_itself("x = 6/2 = 3")
    (True, False)
    """
    sides = [_lone_number(side) for side in _normalised(text).split("=")]
    return len({side for side in sides if side is not None}) > 1


def last_number(text: str) -> Number | None:
    """The number that a completion gives as its final answer.

    >>> last_number("That is 5 + 4 = 9. The answer is 9 eggs.").value
    Fraction(9, 1)
    """
    answer = final_answer(text)
    return None if answer is None else single_number(answer)


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    match = None
    for match in pattern.finditer(text):  # noqa: B007 - the last one is wanted
        pass
    return match


def _boxes(text: str) -> list[tuple[int, int, int]]:
    """Where each box starts, its content starts and its content ends (-1: never), in the order of their starts."""
    boxes: list[tuple[int, int, int]] = []
    open_braces: list[int | None] = []  # the box that a brace opens, None for any other brace
    for token in _BRACE_OR_BOX.finditer(text):
        if token.group().startswith("\\boxed"):
            boxes.append((token.start(), token.end(), -1))
            if token.group().endswith("{"):
                open_braces.append(len(boxes) - 1)
        elif token.group() == "{":
            open_braces.append(None)
        elif token.group() == "}" and open_braces:
            box = open_braces.pop()
            if box is not None:
                boxes[box] = (*boxes[box][:2], token.start())
    return boxes


def _stated(tail: str) -> str:
    """What is stated behind a marker: its first sentence, or the formula which that sentence consists of."""
    tail = tail.lstrip(" \t*:").removeprefix("\n")
    for opening, closing in _DELIMITERS:
        end = tail.find(closing, len(opening)) if tail.startswith(opening) else -1
        if end > 0:
            percent = _PERCENT_BEHIND.match(tail, end + len(closing))
            return tail[len(opening) : end].strip() + ("\\%" if percent else "")
    end = _SENTENCE_END.search(tail)
    return (tail[: end.start()] if end else tail).strip(" \t*")


def _last_formulas(text: str) -> tuple[str, int]:
    """The last formula, or the list of the formulas joined to it, and where it ends; ("", -1) when there is none."""
    content, start, last_end = _formula_before(text, len(text))
    contents = [content]
    while content and len(contents) < MAX_JOINED_FORMULAS:
        content, earlier, end = _formula_before(text, start)
        if not content or not _JOINT.fullmatch(text, end, start):
            break
        contents.append(content)
        start = earlier
    return ", ".join(dict.fromkeys(reversed(contents))), last_end


def _formula_before(text: str, limit: int) -> tuple[str, int, int]:
    """Content, start and end of the formula that ends last before `limit`; ("", -1, -1) when there is none."""
    found = ("", -1, -1)
    for opening, closing in _DELIMITERS:
        end = text.rfind(closing, 0, limit)
        start = text.rfind(opening, 0, end) if end > 0 else -1
        content = text[start + len(opening) : end].strip() if start >= 0 else ""
        if content.strip("$") and end + len(closing) > found[2]:
            found = (content, start, end + len(closing))
    return found


def _normalised(text: str) -> str:
    """Without the spacing, delimiters and text commands of LaTeX: `1{,}000\\,\\text{cm}` becomes `1,000 cm`."""
    text = re.sub(r",\\!|\{,\}", ",", text)
    text = re.sub(r"\\[,!;: ]|\\(?:left|right|displaystyle)(?![A-Za-z])", "", text)
    text = _TEXT_GROUP.sub(r" \1 ", text)
    text = _UNIT_POWER.sub(" unit ", text)
    return text.replace("\\$", "$").replace("\\%", "%")


def _is_equation(left: str) -> bool:
    """Whether the left side of "=" is a formula with a variable (`2x + z`) and no name, or "=" is part of `<=`."""
    return left.rstrip().endswith(("<", ">", "!")) or bool(_OPERATOR.search(left) and _VARIABLE.search(left))


def _lone_number(text: str) -> Number | None:
    """The only number in a text that is otherwise empty or names a unit: no operator, command or variable beside it."""
    text = _SPACED_MINUS.sub("-", text)
    matches = list(_NUMBER.finditer(text))
    if len(matches) != 1:
        return None
    start, end = matches[0].span()
    rest = text[:start] + "n" + text[end:]
    if _FORMULA.search(rest) or _GLUED_LETTER.match(text, end):
        return None
    return _to_number(matches[0])


def _to_number(match: re.Match[str]) -> Number | None:
    """The exact value of what `_NUMBER` matched; None for `1,22`, `1/2/3`, `1/0` and numbers of absurd length."""
    if len(match.group()) > MAX_DIGITS:
        return None
    part = match.groupdict()
    try:
        if part["plain"]:
            value = _decimal(part["plain"])
            factors = [_decimal(piece) for piece in part["slashes"].split("/")[1:]]
            if len(factors) > 1:
                return None
            value = value / factors[0] if factors else value
        elif part["c"]:
            value = int(part["whole"]) + Fraction(int(part["c"]), int(part["d"]))
        else:
            numerator, denominator = part["a"] or part["a1"], part["b"] or part["b1"]
            value = int(part["latex_whole"] or 0) + Fraction(int(numerator), int(denominator))
    except (ValueError, ZeroDivisionError):
        return None
    negative = (part["sign"] or part["inner_sign"] or "+") in "-−"
    return Number(-value if negative else value, percent=part["percent"] is not None)


def _decimal(digits: str) -> Fraction:
    """`1,234.5` -> 2469/2. Commas must stand between groups of three; anything else raises ValueError."""
    digits = digits.strip()
    whole, dot, decimals = digits.partition(".")
    if "," in whole and not _GROUPED.fullmatch(whole):
        raise ValueError(f"{digits!r} is not a number")
    return Fraction(whole.replace(",", "") + dot + decimals)
