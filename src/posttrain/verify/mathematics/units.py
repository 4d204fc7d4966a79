r"""Units of measurement in one spelling: `\text{ square centimeters}`, `cm^2` and `sq. cm` are all `cm^2`."""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.verify.mathematics.tokens import Token

_SPELLINGS = {
    "mm": "millimeter millimetre", "cm": "centimeter centimetre", "m": "meter metre", "km": "kilometer kilometre",
    "in": "inch inches", "ft": "foot feet", "yd": "yard", "mi": "mile", "mg": "milligram", "g": "gram gm",
    "kg": "kilogram", "lb": "pound lbs", "oz": "ounce", "t": "ton tonne", "ml": "milliliter millilitre mL",
    "l": "liter litre L", "gal": "gallon", "qt": "quart", "pt": "pint", "cup": "", "s": "second sec", "min": "minute",
    "h": "hour hr", "day": "", "week": "", "month": "", "year": "yr", "unit": "", "degree": "deg", "rad": "radian",
    "dollar": "$ USD usd buck", "cent": "¢", "euro": "EUR €", "£": "GBP", "¥": "yen yuan", "rupee": "Rs", "point": "",
    "acre": "", "mph": "", "k": "kelvin K", "n": "newton N", "j": "joule J", "w": "watt W", "v": "volt V",
    "a": "ampere", "c": "celsius C", "f": "fahrenheit F",
}  # fmt: skip
UNITS = {spelling: unit for unit, others in _SPELLINGS.items() for spelling in (unit, *others.split())}
_POWERS = {
    "square": "^2", "sq": "^2", "sq.": "^2", "squared": "^2", "cubic": "^3", "cu": "^3", "cu.": "^3", "cubed": "^3",
}  # fmt: skip
_NOT_NOUNS = frozenset({
    "squared", "cubed", "or", "and", "not", "to", "from", "is", "about", "approximately", "approx", "between",
    "maybe", "than", "minus", "plus", "negative", "positive", "hundred", "thousand", "million", "billion",
    "trillion", "dozen", "score", "half", "halves", "quarter", "quarters", "third", "thirds", "tenths",
    "hundredths", "twice", "double", "triple", "percent", "pct", "times", "over", "by", "if", "but", "no", "none",
    "never", "wrong", "actually", "instead", "except", "without", "nor", "either", "neither", "both", "answer",
    "false", "untrue", "incorrect", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "twenty", "zero", "pi", "root", "mod", "base", "factorial", "point", "unknown", "other",
    "another", "opposite", "reciprocal", "less", "more",
})  # fmt: skip
"""Words that change or question the number before them."""
_JOINTS = frozenset({"/", "per"})


def spelled_unit(tokens: Sequence[Token]) -> str | None:
    """The unit in its one spelling; None when the tokens are no words and powers of words."""
    words: list[str] = []
    raised = ""
    place = 0
    while place < len(tokens):
        token = tokens[place]
        text = token.text
        if text in _JOINTS:
            words.append("/")
        elif token.kind in ("word", "letter") and token.text.isascii():
            if text.lower() in _POWERS and text.lower() not in ("squared", "cubed"):
                raised = _POWERS[text.lower()]
            elif text.lower() in ("squared", "cubed") and words:
                words[-1] += _POWERS[text.lower()]
            else:
                words.append(_singular(text) + raised)
                raised = ""
        elif text == "^" and words:
            power = [t.text for t in tokens[place + 1 : place + 4] if t.text not in ("{", "}")]
            if not power or power[0] not in ("2", "3"):
                return None
            words[-1] += f"^{power[0]}"
            place += 1 if tokens[place + 1].text != "{" else 3
        elif text not in (".", "-"):
            return None
        place += 1
    return " ".join(words) or None


def _singular(word: str) -> str:
    for spelling in (word, word.lower(), word.lower().removesuffix("s"), word.lower().removesuffix("es")):
        if spelling in UNITS:
            return UNITS[spelling]
    return word.lower().removesuffix("s")


def is_measure(unit: str) -> bool:
    """Whether every word is a unit of measurement."""
    return all(word == "/" or word.partition("^")[0] in _SPELLINGS for word in unit.split())


def is_noun(unit: str) -> bool:
    """Whether it may be what was counted (`eggs`, `red marbles`): a few words, none of which changes the number."""
    words = unit.split()
    return len(words) <= 4 and not any(word in _NOT_NOUNS or len(word) < 2 for word in words)


def same_unit(gold: str | None, given: str | None, *, any_noun: bool) -> bool:
    """The unit of a gold may be left out; a measure may be added to a gold that has none; another unit is wrong."""
    if given is None or gold == given:
        return True
    if gold is None:
        return is_measure(given) or (any_noun and is_noun(given))
    return not is_measure(gold) and gold.split()[-1] == given.split()[-1] and is_noun(gold) and is_noun(given)
