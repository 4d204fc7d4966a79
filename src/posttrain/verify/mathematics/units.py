r"""Normalize units of measurement: `\text{ square centimeters}`, `cm^2` and `sq. cm` are all `cm^2`.

>>> [split_unit(text) for text in (r"9.8\ \mathrm{m/s^2}", r"9.8\,\frac{\text{m}}{\text{s}^2}", r"20^\circ C", r"5\mu")]
[('9.8', 'm s^-2'), ('9.8', 'm s^-2'), ('20', '°C'), None]

The units themselves are in `units.json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from posttrain.verify.mathematics.tokens import Token, fold

_DATA = json.loads((Path(__file__).parent / "units.json").read_text(encoding="utf-8"))
UNITS: dict[str, str] = {spelling: unit for unit, others in _DATA["units"].items() for spelling in (unit, *others)}
_PRODUCTS: dict[str, dict[str, int]] = _DATA["products"]
"""Units with one name that are products of others: miles per hour."""
MULTIPLES: dict[str, int] = _DATA["multiples"]
"""Words that multiply the number before them: `1 million`."""
_NOT_NOUNS = frozenset(_DATA["not_nouns"])
"""Words that are not counted nouns, because they change or question the number before them."""
_ADJECTIVES = frozenset(_DATA["adjectives"])
"""Words that change the number before them only if no noun follows: `4 negative numbers` are four."""
FRACTIONS = (
    r"(?:hal(?:f|ves)|quarters?|(?:third|(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|[a-z]+teen|"
    r"(?:twen|thir|for|fif|six|seven|eigh|nine)tie|hundred|thousand|[a-z]*illion)th)s?)"
)
"""Words for parts: halves, thirds, tenths, twentieths."""
_IS_FRACTION = re.compile(FRACTIONS)
_PREFIXES: dict[str, str] = _DATA["prefixes"]
_WITH_PREFIX = frozenset(_DATA["with_prefix"])
_POWERS: dict[str, int] = _DATA["powers"]

_GROUP = r"\{((?:[^{}]|\{[^{}]*\})*)\}"
_UPRIGHT = re.compile(
    rf"\\(?:text|textrm|textnormal|textup|textbf|mathrm|mathsf|mathbf|operatorname|mbox|hbox|si|unit)\s*{_GROUP}"
)
"""Commands that set letters upright. Units are upright, and variables are not."""
_ROMAN = re.compile(r"\{?\\rm(?![a-z])\s*([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}?")
_FRACTION = re.compile(rf"\\[dt]?frac\s*{_GROUP}\s*{_GROUP}")
_SI = re.compile(rf"\\(?:SI|qty)\s*{_GROUP}\s*{_GROUP}")
_SIGNS = (
    (
        re.compile(
            r"(?:\^\s*\{\s*\\circ\s*\}|\^\s*\\circ|\\degree|°)(?:\s|\\[,;: ])*"
            r"(?:\\(?:text|textrm|mathrm)\s*\{\s*([CF])\s*\}|([CF])(?![A-Za-z]))"
        ),
        r" °\1\2 ",
    ),
    (re.compile(r"\\(?:Omega|ohm)(?![A-Za-z])"), "Ω"),
    (re.compile(r"\\(?:mu|micro)(?![A-Za-z])\s*"), "μ"),
    (re.compile(r"\\(?:AA|angstrom)(?![A-Za-z])"), "Å"),
    (re.compile(r"\\(?:cdot|times)(?![A-Za-z])"), "·"),
    (re.compile(r"\\[,;:! ]|~|\\q?quad(?![a-z])"), " "),
)
_START = re.compile(
    r"\\(?:text|math|operatorname|[mh]box|si\b|unit\b|rm(?![a-z])|[dt]?frac|Omega|ohm|mu(?![a-z])|micro|AA|degree)"
    r"|\^\s*\{?\s*\\circ|[°ΩμÅ]|\{\\rm|(?<=[0-9}])\s+(?=[A-Za-z]+\s?/\s?[A-Za-z])"
)
_SPACE_AT_END = re.compile(r"(?:\s|~|\\[,;:! ]|\\q?quad|\\cdot)+$")
_PLAIN_COMPOUND = re.compile(r"\s+[A-Za-z]{1,3}\s?/\s?[A-Za-z]{1,3}(?:\s?\^\s?\{?[0-9]\}?)?")
_FACTOR = re.compile(
    r"\s*(?:(?P<word>(?:[A-Za-z]+|[ΩμÅ]|°[CF]|[$€£¥¢])+)\.?(?:\s*\^\s*[{(]?\s*(?P<power>-?[0-9]{1,2})\s*[})]?)?"
    r"|(?P<joint>[·*-])|(?P<below>/)|(?P<bracket>[()]))"
)


def split_unit(text: str) -> tuple[str, str] | None:
    r"""A number or formula and the unit of measurement after it, in LaTeX notation; None if there is no unit.

    Italic letters are variables: `5\frac{m}{s}` has no unit, `5\frac{\text{m}}{\text{s}}` has.
    """
    if si := _SI.fullmatch(text.strip()):
        unit = measured(_without_commands(si[2]))
        return None if unit is None else (si[1], unit)
    text = fold(text)
    for start in _START.finditer(text):
        place = start.start()
        if place and (plain := _upright(text[place:])) and (unit := measured(plain)):
            return _SPACE_AT_END.sub("", text[:place]), unit
    return None


def _upright(tail: str) -> str | None:
    """The text without LaTeX commands; None if it contains letters that are set as variables."""
    if _PLAIN_COMPOUND.fullmatch(tail):
        return tail
    tail = _ROMAN.sub(r"\\mathrm{\1}", _FRACTION.sub(r"(\1)/(\2)", tail))
    for sign, plain in _SIGNS:
        tail = sign.sub(plain, tail)
    left = re.sub(r"°[CF]", "", _UPRIGHT.sub(" ", tail))
    return None if re.search(r"[A-Za-z\\]", left) else _without_commands(tail)


def _without_commands(text: str) -> str:
    for sign, plain in _SIGNS:
        text = sign.sub(plain, text)
    return _UPRIGHT.sub(r"\1", _UPRIGHT.sub(r"\1", text))


def measured(plain: str) -> str | None:
    """The normal form of a product of units; None for any other text. Units after "/" or "per" are in the denominator.

    >>> [measured(text) for text in ("J/(kg·K)", "square meters", "m per second squared", "mph", "eggs")]
    ['J K^-1 kg^-1', 'm^2', 'm s^-2', 'mi h^-1', None]
    """
    powers: dict[str, int] = {}
    sign, raised, place = 1, 1, 0
    last: dict[str, int] = {}
    plain = plain.strip().removesuffix(".")
    while place < len(plain):
        factor = _FACTOR.match(plain, place)
        if factor is None:
            return None
        place = factor.end()
        word = factor["word"]
        if factor["below"] or word == "per":
            sign = -1
        elif word in ("squared", "cubed") and last:
            for part, power in last.items():
                powers[part] += power * (_POWERS[word] - 1)
            last = {}
        elif word and word.lower() in _POWERS:
            raised = _POWERS[word.lower()]
        elif word:
            if (unit := _unit(word)) is None:
                return None
            exponent = sign * raised * int(factor["power"] or 1)
            last = {part: power * exponent for part, power in _PRODUCTS.get(unit, {unit: 1}).items()}
            for part, power in last.items():
                powers[part] = powers.get(part, 0) + power
            raised = 1
    if "degree" in powers and (temperature := powers.keys() & {"°C", "°F"}):  # degrees Celsius
        return next(iter(temperature)) if len(powers) == 2 else None
    ordered = sorted((power < 0, unit, power) for unit, power in powers.items() if power)
    return " ".join(unit if power == 1 else f"{unit}^{power}" for _, unit, power in ordered) or None


def _unit(word: str) -> str | None:
    """The normal form of a unit with its prefix, if it has one; None for other words."""
    if word in UNITS:
        return UNITS[word]
    if word[0] in _PREFIXES and word[1:] in _WITH_PREFIX:
        return ("μ" if word[0] == "u" else word[0]) + UNITS[word[1:]]
    lowered = word.lower()
    for spelling in (lowered, lowered.removesuffix("s"), lowered.removesuffix("es")):
        if spelling in UNITS:
            return UNITS[spelling]
        for short, long in _PREFIXES.items():
            if spelling.startswith(long) and short != "u" and UNITS.get(spelling.removeprefix(long)) in _WITH_PREFIX:
                return short + UNITS[spelling.removeprefix(long)]
    return None


def spelled_unit(tokens: Sequence[Token]) -> str | None:
    """The normal form of a number's unit or counted noun; None if the tokens are neither."""
    if (unit := measured(" ".join(token.text for token in tokens))) is not None:
        return unit
    words = [token.text for token in tokens if token.text not in (".", "-")]
    if words and _IS_FRACTION.fullmatch(words[-1].lower()):
        return None
    if any(word.endswith("s") and _IS_FRACTION.fullmatch(word.lower()) for word in words):
        return None
    if any(token.kind not in ("word", "letter") or not token.text.isascii() for token in tokens if token.text in words):
        return None
    return " ".join(_unit(word) or word.lower().removesuffix("s") for word in words) or None


def is_measure(unit: str) -> bool:
    """Whether every word is a unit of measurement."""
    return all(_unit(word.partition("^")[0]) is not None for word in unit.split())


def is_noun(unit: str) -> bool:
    """Whether a text may be a counted noun (`eggs`, `red marbles`): a few words, none of which changes the number."""
    words = unit.split()
    return (
        len(words) <= 4
        and not _ADJECTIVES.intersection(words[-1:])
        and not any(word in _NOT_NOUNS or len(word) < 2 or "^" in word for word in words)
    )


def same_unit(gold: str | None, given: str | None, *, any_noun: bool) -> bool:
    """Whether units match. The gold's unit may be left out, and a measure may be added if the gold has no unit."""
    if given is None or gold == given:
        return True
    if gold is None:
        return is_measure(given) or (any_noun and is_noun(given))
    return not is_measure(gold) and gold.split()[-1] == given.split()[-1] and is_noun(gold) and is_noun(given)
