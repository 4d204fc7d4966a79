"""Sequences of tokens: brackets and separators, a cursor, and left sides that only name the right side."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from posttrain.verify.mathematics.guard import MAX_NESTING, Unreadable
from posttrain.verify.mathematics.tokens import CLOSING, OPENING, Token
from posttrain.verify.mathematics.values import CONSTANTS


class NotAnExpression(Exception):
    """The tokens do not form the expected expression."""


def spelled(tokens: Sequence[Token]) -> str:
    """The tokens as one text. Only words and numbers next to each other keep a space."""
    text: list[str] = []
    before = ""
    for token in tokens:
        if token.kind == before and before in ("word", "number"):
            text.append(" ")
        text.append(token.text)
        before = token.kind
    return "".join(text)


def closing_of(tokens: Sequence[Token], opening: int) -> int:
    """The position at which the bracket at `opening` closes, or -1. An interval may close with another kind."""
    depth = 0
    for place in range(opening, len(tokens)):
        text = tokens[place].text
        depth += _step(text)
        if depth == 0:
            return place
    return -1


def split(tokens: Sequence[Token], separators: Collection[str]) -> tuple[list[Sequence[Token]], list[str]]:
    """The parts between separators outside of brackets and matrices, and the separators."""
    parts: list[Sequence[Token]] = []
    found: list[str] = []
    depth = start = 0
    for place, token in enumerate(tokens):
        depth += _step(token.text)
        if depth < 0:
            raise NotAnExpression
        text = token.text.lower() if token.kind == "word" else token.text
        if depth == 0 and text in separators:
            parts.append(tokens[start:place])
            found.append(text)
            start = place + 1
    parts.append(tokens[start:])
    return parts, found


def _step(text: str) -> int:
    if text in OPENING or text.startswith("\\begin{"):
        return 1
    return -1 if text in CLOSING or text.startswith("\\end{") else 0


class Cursor:
    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens = list(tokens)
        self.position = 0
        self.depth = 0

    def peek(self, ahead: int = 0) -> str:
        place = self.position + ahead
        return self.tokens[place].text if place < len(self.tokens) else ""

    def kind(self, ahead: int = 0) -> str:
        place = self.position + ahead
        return self.tokens[place].kind if place < len(self.tokens) else ""

    def take(self) -> Token:
        if self.position >= len(self.tokens):
            raise NotAnExpression
        self.position += 1
        return self.tokens[self.position - 1]

    def expect(self, text: str) -> None:
        if self.take().text != text:
            raise NotAnExpression

    def descend(self) -> None:
        self.depth += 1
        if self.depth > 3 * MAX_NESTING:
            raise Unreadable("too_large", f"nested deeper than {MAX_NESTING}")


def name_of(tokens: Sequence[Token]) -> str | None:
    """The name on the left of an equation: x, a_3, f(x), AB, |AB|, (p, q), a word. For a function without (x)."""
    texts = [token.text for token in tokens]
    if all(token.kind == "word" for token in tokens):
        return spelled(tokens) if len(tokens) <= 4 else None
    if texts[0] == "|" and texts[-1] == "|" and len(texts) > 2:
        tokens, texts = tokens[1:-1], texts[1:-1]
    letters = [token.kind == "letter" and token.text not in CONSTANTS and token.text != "…" for token in tokens]
    if texts[0] == "∠" and all(letters[1:]):
        return angle_name(texts[1:])
    if texts[0] == "△" and all(letters[1:]):
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


def angle_name(points: Sequence[str]) -> str:
    """The name of an angle by its points. Its sides may be in either order.

    >>> angle_name("CBA"), angle_name("BAC"), angle_name("A")
    ('∠ABC', '∠BAC', '∠A')
    """
    return "∠" + min("".join(points), "".join(reversed(points)))


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
    signs = any(token.kind == "number" or token.text in "+-*×^" for token in plain)
    return bool(letters) and all(letter.isupper() and letter.isascii() for letter in letters) and not signs
