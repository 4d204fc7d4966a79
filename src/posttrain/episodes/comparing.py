"""Texts that a chat template wrote, compared: up to white space, or with letters between them that are not known."""

from __future__ import annotations

from collections.abc import Sequence

_SHOWN = 70
"""Characters of a rendering that an error shows."""


def squeezed(text: str) -> str:
    """Without white space, which a template may trim."""
    return "".join(text.split())


def unspaced(text: str) -> str:
    """Without the letter, too, that many tokenizers read as a space."""
    return squeezed(text.replace("▁", " "))


def is_made_of(text: str, pieces: Sequence[str]) -> bool:
    """Do these stand in the text one after the other, with unknown letters between them and nowhere else?

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
    """Where a rendering does not go on from what stood before, in words."""
    same = next(
        (n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
    )
    start = max(0, same - 20)
    return f"it writes {after[start : start + _SHOWN]!r}, but {before[start : start + _SHOWN]!r} had been sampled"
