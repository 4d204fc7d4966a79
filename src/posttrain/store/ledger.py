"""A working folder's knowledge of its run's URL: who owns it, and which of its files equal the local ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from posttrain.files import write_atomically

LEDGER = ".carried.json"
Stamp = tuple[int, int]
"""Bytes of a file, and when it changed (ns)."""


class Kept(NamedTuple):
    """What `LEDGER` says."""

    url: str
    writer: str
    files: dict[str, Stamp]


def stamp_of(file: Path) -> Stamp:
    """Raises FileNotFoundError where it has gone."""
    status = file.lstat()
    return status.st_size, status.st_mtime_ns


def read_ledger(folder: Path) -> Kept | None:
    """None where there is none, or none that can be understood: then everything is carried again."""
    try:
        found = json.loads((folder / LEDGER).read_text(encoding="utf-8"))
        files = {str(name): (int(size), int(time)) for name, (size, time) in found["files"].items()}
        return Kept(str(found["url"]), str(found["writer"]), files)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def keep_ledger(folder: Path, url: str, writer: str, files: dict[str, Stamp]) -> None:
    write_atomically(folder / LEDGER, json.dumps({"url": url, "writer": writer, "files": files}))
