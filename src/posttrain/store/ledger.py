"""The ledger of a working folder: the run's URL, its writer, and which remote files equal the local ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from posttrain.files import write_atomically

LEDGER = ".carried.json"
Stamp = tuple[int, int]
"""Size of a file in bytes, and its modification time in nanoseconds."""


class Kept(NamedTuple):
    """The content of the ledger."""

    url: str
    writer: str
    files: dict[str, Stamp]


def stamp_of(file: Path) -> Stamp:
    """Return the stamp of a file. Raises FileNotFoundError if the file is gone."""
    status = file.lstat()
    return status.st_size, status.st_mtime_ns


def read_ledger(folder: Path) -> Kept | None:
    """Read the ledger; None if it is missing or invalid. Everything is then uploaded again."""
    try:
        found = json.loads((folder / LEDGER).read_text(encoding="utf-8"))
        files = {str(name): (int(size), int(time)) for name, (size, time) in found["files"].items()}
        return Kept(str(found["url"]), str(found["writer"]), files)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def keep_ledger(folder: Path, url: str, writer: str, files: dict[str, Stamp]) -> None:
    write_atomically(folder / LEDGER, json.dumps({"url": url, "writer": writer, "files": files}))
