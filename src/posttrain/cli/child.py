"""The child process of a run that experiments/children.py starts: `posttrain train` or `resume`, never an orphan.

python -m posttrain.cli.child PARENT SETTINGS FOLDER
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from posttrain.cli import run
from posttrain.lab.experiments.children import WATCHED_EVERY


def main(arguments: Sequence[str]) -> int:
    """Start or resume the run in this folder, and return its exit code."""
    parent, settings, folder = arguments
    die_with(int(parent))
    return run(arguments_for(settings, folder))


def arguments_for(settings: str, folder: str) -> list[str]:
    """Return the command line of this run. If the folder holds a run already, it is resumed."""
    if Path(folder).exists():
        from posttrain.store.run_store import holds_run  # takes more than a second

        if holds_run(Path(folder)):
            return ["resume", folder, "--quiet", "--json"]
    return ["train", settings, "--output", folder, "--quiet", "--json"]


def die_with(parent: int) -> None:
    """Kill this process as soon as its parent is gone: the system then gives it another parent."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCHED_EVERY)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="watch-parent").start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
