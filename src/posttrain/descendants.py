"""Ending a process with everything that it has started, whatever became of it since.

A kill of the process group misses children that made a session of their own (setsid, a double fork). On Linux two marks
find them: the worker is the reaper of its orphans (PR_SET_CHILD_SUBREAPER), so that they stay below it in the tree of
processes, and all of them have inherited a word in their environment, which outlives the worker.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import sys
from contextlib import suppress
from pathlib import Path

MARK = "POSTTRAIN_STARTED_BY"
"""The variable of the environment that tells whose descendant a process is."""
_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS = 20
"""Rounds in which what has been started meanwhile is looked for; each process found in one is stopped."""


def new_mark() -> str:
    """A word that no other process has."""
    return secrets.token_hex(16)


def keep_orphans() -> None:
    """In the process itself: whatever its children leave behind becomes its own child, and not that of init."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_tree(process: int, mark: str) -> None:
    """SIGKILL the process group of `process`, all that is below it, and all that carries the mark.

    They are stopped first, until no new one turns up: a process that is stopped starts no other.
    """
    known = {process}
    for _ in range(_ROUNDS if sys.platform == "linux" else 0):
        new = _found(known, mark) - known
        for one in (known | new) if len(known) == 1 else new:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGSTOP)
        known |= new
        if not new:
            break
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)
    for one in known - {process}:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(one, signal.SIGKILL)


def _found(roots: set[int], mark: str) -> set[int]:
    """The processes below these, and those with the mark."""
    below: dict[int, list[int]] = {}
    found: set[int] = set()
    needle = f"{MARK}={mark}".encode()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        place = Path(entry.path)
        with suppress(OSError, ValueError, IndexError):  # it has ended meanwhile, or is another user's
            parent = int((place / "stat").read_bytes().rpartition(b")")[2].split()[1])
            below.setdefault(parent, []).append(int(entry.name))
            if needle in (place / "environ").read_bytes():
                found.add(int(entry.name))
    waiting = [*roots, *found]
    while waiting:
        children = [child for child in below.get(waiting.pop(), ()) if child not in found]
        found.update(children)
        waiting += children
    return found - {os.getpid()}
