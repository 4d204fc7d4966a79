"""Answers that cannot be good, whatever a judge would say. The judge is not asked about them.

Judges give full marks to a colon, to "Thought process:" and to "Solution" in several languages. A policy that such a
judge trains soon says nothing else (arXiv:2507.08794).
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

from posttrain.verify import read_table

_TOLD = read_table(Path(__file__).with_name("openers.yaml"))
KEYS = frozenset(key.strip() for key in f"{_TOLD['english']};{_TOLD['others']}".split(";"))
"""Openers that introduce an answer but contain none, without case and punctuation."""
LABELS = frozenset(_TOLD["labels"].split())
"""Words that may be an answer on their own, but not before a colon."""

_PIECES = re.compile(r"([^\n:.。!?;…|]*)([\n:.。!?;…|]*)")


def says_nothing(text: str) -> str:
    """The reason why an answer cannot be good; "" for all others.

    >>> says_nothing(" \\n"), says_nothing(":"), says_nothing("**Thought process:**\\nSolution"), says_nothing("7")
    ('empty', 'no letter and no digit', 'openers without an answer', '')
    """
    text = "".join(c for c in unicodedata.normalize("NFKC", text) if unicodedata.category(c) != "Cf").strip()
    if not text:
        return "empty"
    if not any(map(str.isalnum, text)):
        return "no letter and no digit"
    pieces = [(_bare(piece), end) for piece, end in _PIECES.findall(text)]
    opens = all(not piece or piece in KEYS or (piece in LABELS and ":" in end) for piece, end in pieces)
    return "openers without an answer" if opens else ""


def _bare(piece: str) -> str:
    """A piece without case and without signs at its ends, with one kind of apostrophe and of space."""
    kept = re.sub(r"^[\W_]+|[\W_]+$", "", piece.replace("’", "'").casefold())
    return " ".join(kept.replace("-", " ").split())
