"""Iterate over the elements of a JSON array. The text is read in pieces and never held in memory as a whole."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any, Protocol

from posttrain.errors import DataError

PIECE = 1 << 20
"""Number of characters in one read. A longer element makes the reads larger."""
NEAR_THE_END = 12
"""Distance in characters from the end of the read text within which a fault may be a word or an escape that was cut
off."""
SPACE = re.compile(r"\s*")


LONGEST_VALUE = 100_000_000
"""Largest length of one element, in characters."""
MAX_DEPTH = 100
"""Largest nesting depth of arrays and objects. Recursive functions walk through rows, and Python's stack is limited."""
_NESTING = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]')


def refuse_deep(text: str) -> None:
    """Raise RecursionError for JSON that is nested deeper than `MAX_DEPTH`.

    >>> refuse_deep("[" * 100 + "]" * 100)
    """
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for match in _NESTING.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(match[0], 0)
        if depth > MAX_DEPTH:
            raise RecursionError


def hostile_json(error: Exception) -> str:
    """The reason in words why valid JSON cannot be read."""
    if isinstance(error, RecursionError):
        return f"JSON with more than {MAX_DEPTH} levels"
    return f"an integer with more digits than Python reads ({sys.get_int_max_str_digits():,})"


class Readable(Protocol):
    """A text file."""

    def read(self, size: int, /) -> str: ...


def iter_array(file: Readable, name: str) -> Iterator[Any]:
    """Yield the elements of the array in a file; none for an empty file. `name` names the file in errors.

    Raises `DataError`, with line and column, if the text is broken or no array.
    """
    text = _Text(file, name)
    start = text.peek()
    if not start:
        return
    if start != "[":
        found = text.value()
        raise text.broken("broken JSON (Extra data)", text.at) if text.peek() else _no_array(found, name)
    text.at += 1
    if text.peek() != "]":
        yield text.value()
        while text.peek() == ",":
            text.at += 1
            text.peek()
            yield text.value()
    if text.peek() != "]":
        raise text.broken("broken JSON (Expecting ',' delimiter)", text.at)
    text.at += 1
    if text.peek():
        raise text.broken("broken JSON (Extra data)", text.at)


class _Text:
    """A moving window on the text of a file."""

    def __init__(self, file: Readable, name: str) -> None:
        self.file, self.name = file, name
        self.window, self.at, self.ended = "", 0, False
        self.lines, self.columns = 0, 0
        """Number of line ends before the window, and number of characters of its first line before it."""
        self.decoder = json.JSONDecoder()

    def peek(self) -> str:
        """The next character that is not whitespace; "" at the end of the file."""
        while True:
            self.at = SPACE.match(self.window, self.at).end()  # type: ignore[union-attr]
            if self.at < len(self.window) or self.ended:
                return self.window[self.at : self.at + 1]
            self.more()

    def value(self) -> Any:
        """The JSON value that begins here."""
        while True:
            complete, found, end = False, None, self.at
            try:
                found, end = self.decoder.raw_decode(self.window, self.at)
                complete = end < len(self.window) or self.ended
                if complete:
                    refuse_deep(self.window[self.at : end])
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated string") or error.pos >= len(self.window) - NEAR_THE_END
                if self.ended or not cut:
                    raise self.broken(f"broken JSON ({error.msg})", error.pos) from None
            except (ValueError, RecursionError) as error:
                raise self.broken(hostile_json(error), self.at) from None
            if complete:
                self.at = end
                return found
            if len(self.window) > LONGEST_VALUE:
                raise self.broken(f"JSON of more than {LONGEST_VALUE:,} characters in one value", self.at)
            self.more()

    def more(self) -> None:
        """Drop the text before the current position and read on. A read is at least as long as the rest of the window,
        so that a long value takes linear time."""
        passed = self.window[: self.at]
        self.lines += passed.count("\n")
        self.columns = len(passed) - passed.rfind("\n") - 1 + (0 if "\n" in passed else self.columns)
        self.window = self.window[self.at :]
        self.at = 0
        piece = self.file.read(max(PIECE, len(self.window)))
        self.ended = not piece
        self.window += piece

    def broken(self, reason: str, place: int) -> DataError:
        before = self.window[:place]
        line = self.lines + before.count("\n") + 1
        column = place - before.rfind("\n") + (0 if "\n" in before else self.columns)
        hint = " It looks like JSONL: rename it to .jsonl." if "Extra data" in reason else ""
        return DataError(
            given=f"{self.name}, line {line}, column {column}: {reason}",
            allowed="a JSON array of objects",
            fix=f"Fix the file.{hint}",
        )


def _no_array(found: Any, name: str) -> DataError:
    what = "one JSON object, not an array" if isinstance(found, dict) else f"a JSON {type(found).__name__}"
    return DataError(
        given=f"{name} holds {what}",
        allowed="an array of objects: [{...}, {...}]",
        fix="Write one array, or one object per line in a .jsonl file.",
    )
