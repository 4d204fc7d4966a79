"""What stands left of an equals sign only to name what stands right of it."""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.verify.mathematics.structure import closing_of, spelled
from posttrain.verify.mathematics.tokens import Token
from posttrain.verify.mathematics.tree import CONSTANTS


def name_of(tokens: Sequence[Token]) -> str | None:
    """What an equation gives a value to: x, a_3, f(x), AB, |AB|, (p, q), a word. Of a function the name without (x)."""
    texts = [token.text for token in tokens]
    if all(token.kind == "word" for token in tokens):
        return spelled(tokens) if len(tokens) <= 4 else None
    if texts[0] == "|" and texts[-1] == "|" and len(texts) > 2:
        tokens, texts = tokens[1:-1], texts[1:-1]
    letters = [token.kind == "letter" and token.text not in CONSTANTS and token.text != "…" for token in tokens]
    if texts[0] in ("∠", "△") and all(letters[1:]):
        return "".join(texts)
    if all(letters) and (len(tokens) == 1 or all(text.isupper() for text in texts)):
        return "".join(texts)
    if letters[0] and len(texts) > 2 and texts[1] == "_":
        end = closing_of(tokens, 2) if texts[2] == "{" else 2
        return "".join(text for text in texts if text not in "{}") if end == len(texts) - 1 else None
    inside = texts[2:-1] if letters[0] else texts[1:-1]
    opened = texts[1:2] == ["("] if letters[0] else texts[0] == "("
    if opened and texts[-1] == ")" and inside and all(t == "," or (t.isalpha() and len(t) == 1) for t in inside):
        return texts[0] if letters[0] else "".join(texts)
    if letters[0] and _names_function(texts[0]) and opened and closing_of(tokens, 1) == len(texts) - 1:
        return spelled(tokens)  # f(2), P(A | B)
    return None


def _names_function(letter: str) -> bool:
    return letter.isupper() or letter in "fghpq"


def is_label(tokens: Sequence[Token]) -> bool:
    r"""Whether a left side only names a part of a figure: `\frac{NO}{BO}`, `A:B`, `V_{1}:V_{2}`."""
    plain: list[Token] = []
    place = 0
    while place < len(tokens):
        if tokens[place].text == "_" and place + 1 < len(tokens):
            place = closing_of(tokens, place + 1) if tokens[place + 1].text == "{" else place + 1
            if place < 0:
                return False
        else:
            plain.append(tokens[place])
        place += 1
    letters = [token.text for token in plain if token.kind == "letter"]
    signs = any(token.kind == "number" or token.text in "+-*^" for token in plain)
    return bool(letters) and all(letter.isupper() and letter.isascii() for letter in letters) and not signs
