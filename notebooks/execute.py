"""`python -m notebooks.execute [NAME ...]`: run each notebook in its own kernel, and keep the outputs in build/.

The first cell that fails ends the command with its traceback. A notebook whose packages cannot be downloaded is
skipped, and the command then fails at its end.
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


def execute(path: Path) -> bool:
    """Run one notebook in an empty folder, and print how long it took. If its packages cannot be downloaded, print why
    and return False. Raises CellExecutionError."""
    place = EXECUTED / path.stem
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    if reason := download(path, place):
        print(f"{path.stem:<16} skipped: {reason}", flush=True)
        return False
    notebook = nbformat.read(path, as_version=4)
    began = time.monotonic()
    NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(place)}}).execute()
    nbformat.write(notebook, EXECUTED / path.name)
    print(f"{path.stem:<16} {time.monotonic() - began:4.0f} s   {EXECUTED / path.name}", flush=True)
    return True


def main(names: list[str]) -> None:
    """Run these notebooks, or all. Exits with a message for unknown names, and at the end if a notebook was skipped."""
    known = {path.stem: path for path in sorted(FOLDER.glob("*.ipynb"))}
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"no notebook is called {' or '.join(unknown)}; allowed: {', '.join(known)}")
    if skipped := [name for name in names or known if not execute(known[name])]:
        sys.exit(f"did not run: {', '.join(skipped)}")


if __name__ == "__main__":
    main(sys.argv[1:])
