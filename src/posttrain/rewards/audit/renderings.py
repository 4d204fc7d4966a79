r"""The gold answer of a row, the forms in which a completion can state it, and other spellings of the same value.

A form is a template that fixes the place of the answer. A spelling is another way to write the answer itself. A reward
may insist on one form, which the prompt describes, but within a form it should read every spelling.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from posttrain.verify.mathematics.places import final_of

WORK = "Let us take it step by step and look at what is asked.\n"
"""A line of reasoning without numbers, formulas and answer markers."""

FORMS: dict[str, str] = {
    "boxed": WORK + r"\boxed{GOLD}",
    "hash": WORK + "#### GOLD",
    "tag": "<think>" + WORK.strip() + "</think>\n<answer>GOLD</answer>",
    "answer is": WORK + "The answer is GOLD.",
    "answer colon": WORK + "Answer: GOLD",
    "bare": "GOLD",
    "in words": WORK + "So we find GOLD",
}
"""The forms of a final answer, by name. Cheats use the first form that the reward reads."""

_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")
_MAX_DIGITS = 30
_TYPESETTING = re.compile(r"\\(?:left|right|text|mathrm|[,;! ])|(?<=\\)[dt](?=frac)|[\s{}$]")
_FORMULA = re.compile(r"[\d^_=+*/<>]|(?:^|\s)-|\\(?!text|mathrm|[,;! ])")
_NAME = re.compile(r"^[a-zA-Z]\w{0,2}=")


def fill(form: str, answer: str) -> str:
    """The completion that states an answer in a form. `form` is a name from FORMS or a template.

    >>> fill("hash", "18").splitlines()[-1], fill("<a>GOLD</a>", "18")
    ('#### 18', '<a>18</a>')
    """
    return FORMS.get(form, form).replace("GOLD", answer)


def last_line(form: str) -> str:
    """The part of a form that contains the answer, to show to users."""
    return FORMS.get(form, form).splitlines()[-1]


def is_solution(gold: Any) -> bool:
    """Whether a gold answer is a worked solution and not only its result."""
    return isinstance(gold, str) and final_of(gold) != gold.strip()


def number_of(answer: str) -> Fraction | None:
    """The exact value of an answer that is one plain number.

    >>> number_of("1,234.50"), number_of("7 or 8"), number_of("-3")
    (Fraction(2469, 2), None, Fraction(-3, 1))
    """
    text = answer.strip().removeprefix("$").strip()
    return Fraction(text.replace(",", "")) if _NUMBER.fullmatch(text) and len(text) <= _MAX_DIGITS else None


def sort_of(answer: str) -> str:
    r"""Whether an answer is a number, a formula or words.

    >>> [sort_of(answer) for answer in ("1,300", "p - q", r"\pi", "x^2", r"\text{Evelyn}", "well-known")]
    ['number', 'formula', 'formula', 'formula', 'words', 'words']
    """
    if number_of(answer) is not None:
        return "number"
    return "formula" if _FORMULA.search(answer) else "words"


def differ(one: str, other: str) -> bool:
    r"""Whether two answers surely differ: different numbers, or texts that differ in more than their typesetting.

    >>> differ("7", "7.0"), differ("x = 5", "5"), differ(r"\dfrac{1}{2}", r"\frac12"), differ("Evelyn", "9")
    (False, False, False, True)
    """
    left, right = (_NAME.sub("", _TYPESETTING.sub("", text)) for text in (one, other))
    values = number_of(left), number_of(right)
    return left.casefold() != right.casefold() if None in values else values[0] != values[1]


def written(value: Fraction) -> str:
    """A number in digits: an integer, a finite decimal, or a fraction.

    >>> written(Fraction(7)), written(Fraction(-1, 8)), written(Fraction(1, 3))
    ('7', '-0.125', '1/3')
    """
    if value.denominator == 1:
        return str(value.numerator)
    places = next((n for n in range(1, 20) if (value * 10**n).denominator == 1), None)
    if places is None:
        return f"{value.numerator}/{value.denominator}"
    digits = str(abs(int(value * 10**places))).rjust(places + 1, "0")
    return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"


def spellings(answer: str, form: str) -> dict[str, str]:
    """Completions with other spellings of the same answer, by name. Spellings that change nothing are left out."""
    ways = {
        "as it is": fill(form, answer),
        "spaces around it": fill(form, f" {answer} "),
        "dollar signs around it": fill(form, f"${answer}$"),
        "a line break at the end": fill(form, answer) + "\n",
        "a sentence behind it": fill(form, answer) + ("\n\nThis is what was asked for." if form == "boxed" else ""),
        "a long text before it": WORK * 40 + fill(form, answer),
        "reasoning before it": f"<think>\n{WORK}Maybe not.\n</think>\n{fill(form, answer)}",
        **({} if (value := number_of(answer)) is None else _of_number(value, form)),
    }
    return {name: text for name, text in ways.items() if name == "as it is" or text != ways["as it is"]}


def _of_number(value: Fraction, form: str) -> dict[str, str]:
    plain, boxed = written(value), form == "boxed"
    stopped = fill(form, plain).endswith(".")
    ways = {
        "digits only": fill(form, plain),
        "zeros behind the point": fill(form, f"{plain}00" if "." in plain else f"{plain}.00"),
        "a currency sign": fill(form, f"\\${plain}" if boxed else f"${plain}"),
        "a full stop behind it": fill(form, plain) + "." if boxed else fill(form, plain if stopped else f"{plain}."),
        "as text or bold": fill(form, f"\\text{{{plain}}}" if boxed else f"**{plain}**"),
    }
    if value.denominator == 1:
        return ways | {"commas between thousands": fill(form, f"{int(value):,}")}
    return ways | {"a fraction": fill(form, f"\\frac{{{value.numerator}}}{{{value.denominator}}}")}
