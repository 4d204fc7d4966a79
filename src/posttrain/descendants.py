"""Kill a process with all of its descendants, even those that have left its process group.

Killing the process group misses children that made their own session (setsid, a double fork). On Linux two marks find
them. First, the worker is the reaper of its orphans (PR_SET_CHILD_SUBREAPER), so they stay below it in the process
tree. Second, all descendants inherit a unique word in their environment, which outlives the worker.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress

MARK = "POSTTRAIN_STARTED_BY"
"""The environment variable that tells whose descendant a process is."""
_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS = 20
"""Largest number of rounds of the search for new processes. Each round stops the processes that it finds."""


def new_mark() -> str:
    """A random word that marks the descendants of one process."""
    return os.urandom(16).hex()


def keep_orphans() -> None:
    """Make this process the reaper of its orphaned descendants, instead of init. Call it in the process itself."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_tree(process: int, mark: str) -> None:
    """Send SIGKILL to the process group of `process`, to its descendants, and to all processes that carry the mark.

    All of them are stopped first, until no new one turns up: a stopped process cannot start another.
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
    """The descendants of `roots`, and the processes that carry the mark.

    A process that is older than `process` cannot be its descendant, so its environment is not read. Reading
    environments is the slowest part here, and a machine has many unrelated processes.
    """
    below: dict[int, list[int]] = {}
    started: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError):  # the process has ended meanwhile
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
    with suppress(OSError):  # the process has ended, or belongs to another user
        return needle in _read(f"/proc/{process}/environ")
    return False


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()
