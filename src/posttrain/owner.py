"""The process that writes a run, as locks and claims name it: `pid 4711 on HOST (12ab34cd)`.

The brackets hold a hash of boot id and pid namespace. Containers often share a host name, but not their pids: a pid
says something about a process only where the hash is the same. Locks of earlier versions have no brackets.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
from pathlib import Path

_OWNER = re.compile(r"pid (\d+) on (\S+)(?: \((\w+)\))?")


def this_process() -> str:
    """Return the name of this process for a lock or a claim."""
    return f"pid {os.getpid()} on {machine()}"


def machine() -> str:
    """Return the host name with the hash that distinguishes containers of one name."""
    return f"{socket.gethostname()} ({_space()})"


def pid_here(owner: str) -> int | None:
    """Return the pid of an owner that this process can look up. None if it is elsewhere: nothing is known about it."""
    found = _OWNER.fullmatch(owner.strip())
    if found is None or found[2] != socket.gethostname() or found[3] not in (None, _space()):
        return None
    return int(found[1])


def in_words(owner: str) -> str:
    """Return an owner as people read it: without the hash."""
    found = _OWNER.fullmatch(owner.strip())
    if found is None:
        return owner or "unknown"
    elsewhere = found[2] == socket.gethostname() and pid_here(owner) is None
    return f"pid {found[1]} on {found[2]}" + (", in another container or machine of that name" if elsewhere else "")


def _space() -> str:
    try:
        start = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")
        return hashlib.sha256((start + os.readlink("/proc/self/ns/pid")).encode()).hexdigest()[:8]
    except OSError:  # not Linux
        return "unknown"
