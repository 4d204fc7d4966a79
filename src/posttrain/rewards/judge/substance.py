"""Answers that cannot be good ones, whatever a judge would say of them: nobody is asked.

Judges give full marks to a colon, to "Thought process:", to "Solution" in several languages, and a policy that is
trained by one soon says nothing else (arXiv:2507.08794).
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

from posttrain.verify import read_table

_TOLD = read_table(Path(__file__).with_name("openers.yaml"))
KEYS = frozenset(key.strip() for key in f"{_TOLD['english']};{_TOLD['others']}".split(";"))
"""Openers after which an answer would have to follow, without case and punctuation."""
LABELS = frozenset(_TOLD["labels"].split())
"""Words that may be an answer by themselves, and are none before a colon."""

_PIECES = re.compile(r"([^\n:.。!?;…|]*)([\n:.。!?;…|]*)")


def says_nothing(text: str) -> str:
    """Why an answer cannot be a good one; "" for all others.

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
    """Without case, without signs at its ends, with one kind of apostrophe and of space."""
    kept = re.sub(r"^[\W_]+|[\W_]+$", "", piece.replace("’", "'").casefold())
    return " ".join(kept.replace("-", " ").split())
