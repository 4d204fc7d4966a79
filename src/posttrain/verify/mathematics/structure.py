"""Brackets and separators of a row of tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from posttrain.verify.mathematics.cursor import NotAnExpression
from posttrain.verify.mathematics.tokens import Token

_OPENING = frozenset({"(", "[", "{", "\\{", "⟨"})
_CLOSING = frozenset({")", "]", "}", "\\}", "⟩"})


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
    """Where the bracket at `opening` is closed; an interval may close with another kind. -1: never."""
    depth = 0
    for place in range(opening, len(tokens)):
        text = tokens[place].text
        depth += _step(text)
        if depth == 0:
            return place
    return -1


def split(tokens: Sequence[Token], separators: Collection[str]) -> tuple[list[Sequence[Token]], list[str]]:
    """The parts between separators that stand in no bracket and no matrix, and the separators."""
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
    if text in _OPENING or text.startswith("\\begin{"):
        return 1
    return -1 if text in _CLOSING or text.startswith("\\end{") else 0
