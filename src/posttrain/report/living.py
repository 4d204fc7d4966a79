"""Whether somebody is writing a run: from its files, and from whether the process is there that they name."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Literal

import psutil

from posttrain.files import read_inside
from posttrain.report.store import Status

State = Literal["running", "finished", "failed", "stopped", "silent"]
"""`stopped`: by somebody, or its process is gone; `silent`: unfinished, and its process is of another machine."""

CLOCK_SECONDS = 60.0
"""By which the start of a process and the time of a file may be apart though they are not."""

_OWNER = re.compile(r"pid (\d+) on (\S+)")


def state_of(folder: Path, status: Status) -> State:
    """How a run stands whose files say `status`."""
    if status != "unfinished":
        return status
    alive = _owner_lives(folder)
    return "silent" if alive is None else "running" if alive else "stopped"


def _owner_lives(folder: Path) -> bool | None:
    """Whether the process that writes the run is there; None where its machine is another one, or nobody says.

    The lock is read and never taken: a run that is about to start must not find it held.
    """
    try:
        owner = _OWNER.search(read_inside(folder, ".lock", most=1000).decode(errors="replace"))
        locked = (folder / ".lock").lstat().st_mtime
    except OSError:
        return None
    if owner is None or owner[2] != socket.gethostname():
        return None
    try:
        process = psutil.Process(int(owner[1]))
        if process.status() == psutil.STATUS_ZOMBIE:  # it has ended, and nobody has asked how
            return False
        return process.create_time() <= locked + CLOCK_SECONDS  # else the number is another process's by now
    except (psutil.NoSuchProcess, OverflowError, ValueError):
        return False
    except psutil.AccessDenied:
        return True
