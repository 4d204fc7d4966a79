r"""Congruences: `x \equiv 4 \pmod 9`, and the residue alone, `4 \pmod 9`.

A modulus may be written as `\pmod 9`, as `(\bmod 9)` or `(mod 9)` in brackets, and after ≡ also without them. Before
statements are read, each of these becomes one token in front of the modulus.
"""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.verify.mathematics.structure import NotAnExpression, closing_of, split
from posttrain.verify.mathematics.tokens import Token

EQUIVALENT = "\\equiv"
MODULO = Token("operator", "modulo")
_NAKED, _ALWAYS = frozenset({"\\mod", "\\bmod", "mod"}), "\\pmod"
SIGNS = _NAKED | {_ALWAYS, EQUIVALENT}
"""The signs of a congruence or of a remainder."""


def with_moduli(tokens: Sequence[Token]) -> Sequence[Token]:
    r"""The tokens with `MODULO` in front of each modulus of a congruence.

    A remainder, such as `7 \bmod 5`, stays as it is: it is a computation.
    """
    texts = [token.text for token in tokens]
    if SIGNS.isdisjoint(texts):
        return tokens
    found: list[Token] = []
    place = 0
    while place < len(tokens):
        bracketed = texts[place] == "(" and place + 1 < len(tokens) and texts[place + 1] in _NAKED
        if bracketed and (end := closing_of(tokens, place)) > 0:
            found += [MODULO, *tokens[place + 2 : end]]
            place = end + 1
            continue
        naked = texts[place] in _NAKED and EQUIVALENT in texts
        found.append(MODULO if naked or texts[place] == _ALWAYS else tokens[place])
        place += 1
    return found


def congruence(tokens: Sequence[Token]) -> tuple[Sequence[Token], Sequence[Token], Sequence[Token]] | None:
    """The left side, which may be empty, the residue and the modulus of a congruence; None for other tokens."""
    parts, moduli = split(tokens, (MODULO.text,))
    if not moduli:
        return None
    sides, relations = split(parts[0], (EQUIVALENT, "="))
    if len(moduli) > 1 or len(relations) > 1 or not (all(sides) and parts[1]):
        raise NotAnExpression
    return sides[0] if relations else (), sides[-1], parts[1]
