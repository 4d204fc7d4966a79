"""Comparison of texts that a chat template wrote, up to white space or with unknown letters between them."""

from __future__ import annotations

from collections.abc import Sequence

_SHOWN = 70
"""Characters of a rendering that an error shows."""


def squeezed(text: str) -> str:
    """Return the text without white space, which a template may trim."""
    return "".join(text.split())


def unspaced(text: str) -> str:
    """Return the text without white space, and without "▁", which many tokenizers use for a space."""
    return squeezed(text.replace("▁", " "))


def is_made_of(text: str, pieces: Sequence[str]) -> bool:
    """Return whether the text is these pieces in this order, with unknown letters between them and nowhere else.

    >>> is_made_of("abXc", ["ab", "c"]), is_made_of("abXc", ["ab", "Xc"]), is_made_of("abX", ["", ""])
    (True, False, False)
    """
    if len(pieces) == 1:
        return text == pieces[0]
    first, *between, last = pieces
    if not any(pieces) or not text.startswith(first):
        return False
    at = len(first)
    for piece in between:
        if (found := text.find(piece, at + 1)) < 0:
            return False
        at = found + len(piece)
    return len(text) - len(last) > at and text.endswith(last)


def difference(before: str, after: str) -> str:
    """Return an error text that shows where a rendering departs from the text before it."""
    same = next(
        (n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
    )
    start = max(0, same - 20)
    return f"it writes {after[start : start + _SHOWN]!r}, but {before[start : start + _SHOWN]!r} had been sampled"
