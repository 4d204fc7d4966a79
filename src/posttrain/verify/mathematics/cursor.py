"""A place in a row of tokens, and how deep the reading has gone."""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.verify.mathematics.guard import MAX_NESTING, Unreadable
from posttrain.verify.mathematics.tokens import Token


class NotAnExpression(Exception):
    """The tokens are not what was looked for."""


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
