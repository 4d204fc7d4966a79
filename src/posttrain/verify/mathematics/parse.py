r"""Parse the text of an answer into its value: separate list items, name and unit, and read the rest.

>>> parse("x = 6/2 = 3", Options()).meaning
Number(value=Fraction(3, 1), decimal=False, percent=False)
>>> parse("8 = 7", Options())
Traceback (most recent call last):
posttrain.verify.mathematics.guard.Unreadable: ('ambiguous', 'a chain of equations whose sides differ')
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from posttrain.verify.mathematics.congruences import with_moduli
from posttrain.verify.mathematics.guard import MAX_CHARS, MAX_DIGITS, MAX_ITEMS, Unreadable
from posttrain.verify.mathematics.options import Options
from posttrain.verify.mathematics.regions import united
from posttrain.verify.mathematics.statements import QUANTITIES, UNDONE, Statements, result_of
from posttrain.verify.mathematics.structure import NotAnExpression, closing_of, spelled, split
from posttrain.verify.mathematics.tokens import Token, tokenise
from posttrain.verify.mathematics.units import measured, split_unit
from posttrain.verify.mathematics.values import (
    Bracket,
    Equation,
    Expression,
    Listing,
    Number,
    Region,
    Unread,
    Value,
    Words,
)

_PLAIN = re.compile(r"\s*(-?)([1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)(?:\.([0-9]+))?\.?\s*")
_FRACTION = re.compile(
    r"\s*(-?)(?:\\[dt]?frac\{\s?(-?[0-9]{1,400})\s?\}\{\s?([0-9]{1,400})\s?\}|((?!0[0-9])[0-9]{1,400})/((?!0[0-9])[0-9]{1,400}))\.?\s*"
)
_MEASURE = re.compile(r"(-?)([1-9][0-9]{0,30}) ([a-z]{3,})")
"""A number with a noun: a frequent form that is read without tokens."""
_PER_CENT = re.compile(r"\bper\s+cent(?![a-z])", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"(-?[0-9]+),([0-9]+)")
_LABEL = re.compile(
    r"\s*(?P<opening>\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{)?\s*"
    r"(?:(?:so|thus|hence|therefore|the|our|my|final|correct|required|"
    rf"{'|'.join(QUANTITIES)})\b[\s,]*)++"
    r"(?:(?:is|are|equals)\b\s*:?|:)\s*(?P<closing>\})?(?=\s*\S)",
    re.IGNORECASE,
)
"""Words that announce an answer inside its box."""


def parse(text: str, options: Options, *, gold: bool = False) -> Value:
    """The value of an answer. Unreadable (`reason`, `detail`) if it has none.

    `gold` is for gold answers: one that needs too much arithmetic is left to the algebra system.
    """
    if len(text) > MAX_CHARS:
        raise Unreadable("too_large", f"the answer has {len(text)} characters; only {MAX_CHARS} are read")
    plain = _PLAIN.fullmatch(text)
    if plain:
        return _plain_number(plain)
    fraction = _FRACTION.fullmatch(text)
    if fraction:
        return _plain_fraction(fraction)
    measure = _MEASURE.fullmatch(text)
    if measure and (unit := measured(measure[3])):
        sign, digits = measure[1], measure[2]
        return Value(f"{sign}{digits}{measure[3]}", Number(-int(digits) if sign else int(digits)), unit)
    text = _PER_CENT.sub("percent", without_label(text))
    if (split := split_unit(text)) is not None and (value := _with_unit(*split, options)) is not None:
        return value
    tokens = with_moduli(tokenise(text))
    if not tokens:
        raise Unreadable("no_answer", "the answer is empty")
    written = spelled(tokens)
    try:
        value = _value(tokens, Statements(options))
    except NotAnExpression:
        value = Value(written, _not_mathematics(tokens))
    except Unreadable as found:
        if not (gold and found.reason == "too_large"):
            raise
        value = Value(written, Unread())
    except (RecursionError, OverflowError):  # no known answer does this
        raise Unreadable("too_large", "nested too deeply") from None
    if isinstance(value.meaning, Listing) and (comma := _DECIMAL_COMMA.fullmatch(text.strip())):
        value = replace(value, meaning=replace(value.meaning, decimal=Fraction(f"{comma[1]}.{comma[2]}")))
    asked = result_of(tokens) if value.name is not None or isinstance(value.meaning, Equation) else tokens
    undone = {token.text for token in asked if token.text in UNDONE}
    return replace(value, text=written, computations=value.computations | undone)


def without_label(text: str) -> str:
    r"""The answer without words that only announce it.

    >>> without_label(r"\text{The answer is } 7"), without_label("Total: 7"), without_label(r"\text{The answer is 7}")
    ('7', '7', '\\text{7}')
    """
    label = _LABEL.match(text)
    if label is None:
        return text
    rest = text[label.end() :]
    opening = "" if label["opening"] is None or label["closing"] else label["opening"]
    return f"{opening}{rest}".strip()


def _with_unit(rest: str, unit: str, options: Options) -> Value | None:
    """The number or formula before a unit; None for values that cannot have a unit, such as a list."""
    try:
        value = parse(rest, options)
    except Unreadable:
        return None
    if not isinstance(value.meaning, Number | Expression) or value.unit is not None:
        return None
    return replace(value, unit=unit, text=f"{value.text} {unit}")


def _plain_number(match: re.Match[str]) -> Value:
    sign, whole, decimals = match.groups()
    digits = whole.replace(",", "") if "," in whole else whole
    if len(digits) + len(decimals or "") > MAX_DIGITS:
        raise Unreadable("too_large", f"a number of more than {MAX_DIGITS} digits")
    if decimals is None:
        return Value(sign + digits, Number(-int(digits) if sign else int(digits)))
    value = Fraction(int(digits + decimals), 10 ** len(decimals))
    return Value(f"{sign}{digits}.{decimals}", Number(-value if sign else value, decimal=True))


def _plain_fraction(match: re.Match[str]) -> Value:
    sign, above, below = match[1], match[2] or match[4], match[3] or match[5]
    if not int(below):
        raise Unreadable("wrong", "a division by zero")
    value = Fraction(int(above), int(below))
    return Value(f"{sign}{above}/{below}", Number(-value if sign else value))


def _not_mathematics(tokens: Sequence[Token]) -> Words | Unread:
    return Words(spelled(tokens)) if any(token.kind == "word" for token in tokens) else Unread()


def _value(tokens: Sequence[Token], statements: Statements) -> Value:
    """The value of one statement, or of a list of several."""
    tokens = _bare(tokens)
    if (solutions := _solutions(tokens, statements)) is not None:
        return solutions
    parts, joints = split(tokens, (",", ";", "or", "and"))
    if len(parts) > 1 and not all(parts):
        parts, joints = _without_gaps(parts, joints)
    if len(parts) > MAX_ITEMS:
        raise Unreadable("too_large", f"a list of more than {MAX_ITEMS}")
    if len(parts) == 1:
        return statements.read(parts[0])
    items: list[Value] = []
    for part in parts:
        item = statements.read(_bare(part))
        spread = isinstance(item.meaning, Listing) and not item.meaning.braced  # 1 ± √2 among others
        items += item.meaning.items if isinstance(item.meaning, Listing) and spread else [item]
    undone = frozenset().union(*(item.computations for item in items))
    regions = [item.meaning for item in items if isinstance(item.meaning, Region)]
    if set(joints) == {"or"} and len(regions) == len(items) and len({item.name for item in items}) == 1:
        return Value(spelled(tokens), united(regions, statements.options), name=items[0].name, computations=undone)
    return Value(spelled(tokens), Listing(tuple(items)), computations=undone)


def _solutions(tokens: Sequence[Token], statements: Statements) -> Value | None:
    """Read `p = 5, q = 2; p = 7, q = 2` as the points (5, 2), (7, 2)."""
    groups = [split(group, (",",))[0] for group in split(tokens, (";",))[0]]
    if len(groups) < 2 or len(groups[0]) < 2 or any(not part for group in groups for part in group):
        return None
    if sum(map(len, groups)) > MAX_ITEMS or any(
        "=" not in [t.text for t in part] for group in groups for part in group
    ):
        return None
    points = [[statements.read(_bare(part)) for part in group] for group in groups]
    points = [sorted(point, key=lambda item: item.name or "") for point in points]
    names = [[item.name for item in point] for point in points]
    if None in names[0] or len(set(names[0])) < len(names[0]) or any(other != names[0] for other in names):
        return None
    undone = frozenset().union(*(item.computations for point in points for item in point))
    items = [Value("", Bracket("(", tuple(replace(item, name=None) for item in point), ")")) for point in points]
    return Value(spelled(tokens), Listing(tuple(items)), computations=undone)


def _bare(tokens: Sequence[Token]) -> Sequence[Token]:
    """The tokens without braces around them and without a sign for "about" in front."""
    while tokens:
        if tokens[0].text == "≈" or (tokens[0].text in ("=", ":") and len(tokens) > 1):
            tokens = tokens[1:]
        elif tokens[0].text == "{" and closing_of(tokens, 0) == len(tokens) - 1:
            tokens = tokens[1:-1]
        else:
            return tokens
    raise Unreadable("no_answer", "the answer is empty")


def _without_gaps(parts: list[Sequence[Token]], joints: list[str]) -> tuple[list[Sequence[Token]], list[str]]:
    """Merge two separators in a row: `2, 3, and 4` has three parts. With any other gap it is not a list."""
    kept, kept_joints = [parts[0]], []
    for joint, part in zip(joints, parts[1:], strict=True):
        if not kept[-1] and kept_joints and joint in ("or", "and"):
            kept.pop()
            joint = kept_joints.pop() if joint == "and" else joint
            if kept_joints and len(kept) > len(kept_joints) + 1:
                raise NotAnExpression
        kept_joints.append(joint)
        kept.append(part)
    if not all(kept):
        raise NotAnExpression
    return kept, kept_joints
