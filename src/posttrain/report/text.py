"""Makes text of models safe to show: it cannot act on a page or a terminal, and nothing is silently left out."""

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
    """Replace every control, invisible or direction character by its code point in brackets.

    >>> visible("a\\x1b[31mb\\u202ec")
    'a⟨U+001B⟩[31mb⟨U+202E⟩c'
    """
    return _INVISIBLE.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text.replace("\r\n", "\n"))


def escaped(text: Any) -> str:
    """Escape text for HTML: safe in element content and in quoted attributes."""
    return html.escape(visible(str(text)), quote=True)


def cut(text: str, limit: int) -> tuple[str, str]:
    """Return the start of a long text, and a note with its length. The note is empty if nothing was cut.

    >>> cut("abcdef", 3)
    ('abc', 'cut here: 3 of 6 characters shown')
    """
    if len(text) <= limit:
        return text, ""
    return text[:limit], f"cut here: {limit:,} of {len(text):,} characters shown"


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: bool = False) -> str:
    """Return a plain-text table. `right`: right-align all columns except the first."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides = [str.ljust, *[str.rjust if right else str.ljust] * (len(widths) - 1)]
    shown = (map(lambda side, cell, width: side(cell, width), sides, line, widths) for line in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in shown)


def script_json(value: Any) -> str:
    """Return JSON that cannot close or comment out the script element around it."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
