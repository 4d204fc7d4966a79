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
        new = _found(process, known, mark) - known
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


def _found(process: int, roots: set[int], mark: str) -> set[int]:
    """The processes below these, and those with the mark.

    Who is older than `process` was not started by it, and is not asked for the mark: to read what surrounds a process
    takes longer than all else here, and a machine has many that have nothing to do with us.
    """
    below: dict[int, list[int]] = {}
    started: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
                fields = _read(f"/proc/{name}/stat").rpartition(b")")[2].split()
                below.setdefault(int(fields[1]), []).append(int(name))
                started[int(name)] = int(fields[19])
    needle = f"{MARK}={mark}".encode()
    since = started.get(process, 0)
    found = {one for one, start in started.items() if start >= since and _carries(one, needle)}
    waiting = [*roots, *found]
    while waiting:
        children = [child for child in below.get(waiting.pop(), ()) if child not in found]
        found.update(children)
        waiting += children
    return found - {os.getpid()}


def _carries(process: int, needle: bytes) -> bool:
    with suppress(OSError):  # it has ended, or is another user's
        return needle in _read(f"/proc/{process}/environ")
    return False


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()
