"""`python -m notebooks.execute [NAME ...]`: run each notebook in its own kernel, and keep the outputs in build/.

The first cell that fails ends the command with its traceback.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from notebooks.downloads import download

FOLDER = Path(__file__).parent
EXECUTED = FOLDER.parent / "build" / "notebooks" / "executed"
SECONDS = 600
"""Time limit of one cell, in seconds."""


def execute(path: Path) -> str:
    """Run one notebook in an empty folder, and say in words how long it took or why it was skipped. Raises
    CellExecutionError."""
    place = EXECUTED / path.stem
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    if reason := download(path, place):
        return f"skipped: {reason}"
    notebook = nbformat.read(path, as_version=4)
    began = time.monotonic()
    NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(place)}}).execute()
    nbformat.write(notebook, EXECUTED / path.name)
    return f"{time.monotonic() - began:4.0f} s   {EXECUTED / path.name}"


def main(names: list[str]) -> None:
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not names or path.stem in names:
            print(f"{path.stem:<16} {execute(path)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
