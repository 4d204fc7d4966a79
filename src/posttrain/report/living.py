"""Whether somebody is writing a run: from its files, and from whether the process is there that they name."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Literal

import psutil

from posttrain.report.store import Status

State = Literal["running", "finished", "failed", "stopped", "silent"]
"""`stopped`: unfinished, and its process is gone; `silent`: unfinished, and its process is of another machine."""

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
        owner = _OWNER.search((folder / ".lock").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    if owner is None or owner[2] != socket.gethostname():
        return None
    return psutil.pid_exists(int(owner[1]))
