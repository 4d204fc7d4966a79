"""Built-in tools that are made before a run from its config: Python in the sandbox, and search in a folder.

tools: [python, search:guide/]
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from posttrain.cache import cache_folder
from posttrain.errors import ConfigError
from posttrain.verify.sandbox import Limits, Sandbox, open_sandbox

PASSAGE = 1200
"""Approximate maximum characters of one passage."""
MOST_FILE = 8 << 20
"""Maximum bytes of a file; larger files are left out."""
MOST_RESULTS = 10
_VERSION = "1"

# --- Python -----------------------------------------------------------------------------------------------------------


def python_tool() -> Callable[..., str]:
    """Return a tool that runs a program in the sandbox. Raises SandboxUnavailable if no sandbox works here."""
    open_sandbox(size=1).close()
    return python


def python(code: str) -> str:
    """Run a Python program in a fresh process, without files and network, and see what it prints.

    Args:
        code: The program. Only what it prints comes back; nothing is kept for the next call.

    Returns:
        What it has printed, or the end of its traceback.
    """
    ran = _sandbox().run(code)
    printed = ran.stdout.decode("utf-8", "replace")
    if ran.ended == "exited" and ran.returncode == 0:
        return printed or "It printed nothing. Print what you want to see."
    why = {"exited": "", "wall": "It took too long.", "cpu": "It took too long.", "output": "It printed too much."}
    wrong = ran.stderr.decode("utf-8", "replace").strip()[-1000:]
    raise RuntimeError(
        "\n".join(filter(None, [why.get(ran.ended, f"It ended by {ran.ended}."), wrong, printed[:1000]]))
    )


@functools.cache
def _sandbox() -> Sandbox:
    """Return the sandbox of this trajectory, opened when it is first needed."""
    return open_sandbox(limits=Limits(output=1 << 16), size=1)


# --- search -----------------------------------------------------------------------------------------------------------


def search_tool(folder: str) -> Callable[..., str]:
    """Return a tool that searches the texts of a folder. ConfigError if there are none.

    The index (SQLite's FTS5, ranked by BM25) is made once and kept in posttrain's cache until a file changes.
    """
    index = _index(Path(folder))

    def search(query: str, results: int = 3) -> str:
        """Search the texts for words, and read the passages that fit best.

        Args:
            query: Words; passages that hold more of them, and rarer ones, come first.
            results: How many passages.

        Returns:
            The passages, each behind its file and line.
        """
        words = re.findall(r"\w+", query)
        if not words:
            raise ValueError("the query contains no word")
        asked = " OR ".join(f'"{word}"' for word in words)
        with closing(sqlite3.connect(f"{index.as_uri()}?mode=ro&immutable=1", uri=True)) as found:
            rows = found.execute(
                "SELECT file, line, text FROM passages WHERE passages MATCH ? ORDER BY rank, rowid LIMIT ?",
                (asked, max(1, min(int(results), MOST_RESULTS))),
            ).fetchall()
        return "\n\n".join(f"{file}:{line}\n{text}" for file, line, text in rows) or "Nothing was found."

    return search


def _index(folder: Path) -> Path:
    """Return the file with the index of a folder, and make it if it is missing."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and _is_wanted(file.relative_to(folder))]
    marks = [_VERSION, *(f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files)]
    path = cache_folder("search") / f"{hashlib.sha256(chr(0).join(marks).encode()).hexdigest()[:32]}.sqlite"
    if path.exists():
        return path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, suffix=".draft")
    os.close(handle)
    try:
        with closing(sqlite3.connect(draft)) as made, made:
            columns = "text, file UNINDEXED, line UNINDEXED, tokenize='porter unicode61'"
            made.execute(f"CREATE VIRTUAL TABLE passages USING fts5({columns})")
            rows = ((text, str(file.relative_to(folder)), line) for file in files for line, text in _passages(file))
            made.executemany("INSERT INTO passages(text, file, line) VALUES (?, ?, ?)", rows)
            [held] = made.execute("SELECT count(*) FROM passages").fetchone()
        if not held:
            raise ConfigError(
                given=f"tools: search:{folder}, but that folder holds no text",
                allowed=f"a folder with files of text in UTF-8, each of at most {MOST_FILE >> 20} MiB",
            )
        os.replace(draft, path)
    except sqlite3.OperationalError as error:
        raise ConfigError(given=f"tools: search, but SQLite on this machine has no full-text search: {error}") from None
    finally:
        Path(draft).unlink(missing_ok=True)
    return path.resolve()


def _is_wanted(file: Path) -> bool:
    return not any(part.startswith(".") for part in file.parts)


def _passages(file: Path) -> Iterator[tuple[int, str]]:
    """Yield (first line, text) of passages of whole paragraphs; short paragraphs share a passage. Skip files that are
    too large or not text."""
    if file.stat().st_size > MOST_FILE:
        return
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    if "\0" in text:
        return
    begin, line, held = 1, 1, ""
    for part in re.split(r"(\n\s*\n)", text):
        if held and len(held) + len(part) > PASSAGE and part.strip():
            yield begin, held.strip()
            begin, held = line, ""
        if held or part.strip():
            held += part
        line += part.count("\n")
        if not held:
            begin = line
    if held.strip():
        yield begin, held.strip()
