"""Model text made safe to look at: nothing in it can act on a page or a terminal, and nothing is silently left out."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from typing import Any

_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, the escape that starts a terminal sequence among them
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"  # direction marks, zero width, line separators
    "\U000e0000-\U000e007f\ud800-\udfff]"  # tag characters, lone surrogates
)


def visible(text: str) -> str:
    """Every character that could act instead of being seen is written as its code point.

    >>> visible("a\\x1b[31mb\\u202ec")
    'a⟨U+001B⟩[31mb⟨U+202E⟩c'
    """
    return _INVISIBLE.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text.replace("\r\n", "\n"))


def escaped(text: Any) -> str:
    """Text for an HTML page, in element content and in quoted attributes."""
    return html.escape(visible(str(text)), quote=True)


def cut(text: str, limit: int) -> tuple[str, str]:
    """The start of a long text, and a note that says how long it was; the note is empty when nothing was cut.

    >>> cut("abcdef", 3)
    ('abc', 'cut here: 3 of 6 characters shown')
    """
    if len(text) <= limit:
        return text, ""
    return text[:limit], f"cut here: {limit:,} of {len(text):,} characters shown"


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: bool = False) -> str:
    """A table of plain text; `right`: all columns but the first are aligned at their right side."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides = [str.ljust, *[str.rjust if right else str.ljust] * (len(widths) - 1)]
    shown = (map(lambda side, cell, width: side(cell, width), sides, line, widths) for line in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in shown)


def script_json(value: Any) -> str:
    """JSON that cannot end, or comment out, the script element around it."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
