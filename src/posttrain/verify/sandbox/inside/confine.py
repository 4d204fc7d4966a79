"""The rights that a forked child gives up before it runs a program. Each step is made while it is still possible."""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import sys
from contextlib import suppress

from . import landlock, layout, seccomp

_LIBC = ctypes.CDLL(None, use_errno=True)
_NO_NEW_PRIVS, _DEATH_SIGNAL, _DUMPABLE, _SUBREAPER = 38, 1, 4, 36
_ARENAS = -8
"""The option M_ARENA_MAX of mallopt."""
_ABOVE = 100
"""Descriptors are first moved to this number and above, so that none is overwritten before it has been copied."""


THREADS = 64
"""Maximum number of threads of a program. RLIMIT_NPROC counts all threads of a user, so the limit is higher if the
program shares its user."""


class Confinement:
    """The parts of a confinement that are built once, before the first program: filter and rules."""

    def __init__(self, setup: dict) -> None:
        self.filter = seccomp.build() if setup["seccomp"] else None
        self.threads = THREADS if self.filter is not None else None
        self.rules: int | None = None
        self.user: int | None = setup["user"]
        self.closed = layout.closed_folder() if self.user is not None else None
        if setup["landlock"] != "off":
            readable = [*layout.standard_library(), *layout.shared_libraries(), *layout.DEVICES]
            try:
                self.rules = landlock.ruleset(readable, ["/dev/null"])
            except OSError:
                if setup["landlock"] == "required":
                    raise

    def prepare(self) -> None:
        """Update the thread limit before each fork. A shared user's other threads count too: allow for all of them."""
        if self.threads is not None and self.user is None:
            # without /proc we are in a user namespace, where no other threads count
            with suppress(OSError), open("/proc/loadavg") as file:
                self.threads = THREADS + int(file.read().split()[3].partition("/")[2])

    def apply(self, limits: dict, descriptors: list[int], parent: int) -> None:
        """Confine the calling process, which `parent` has just forked. `descriptors` become 0, 1, 2 and 3."""
        os.setsid()
        signal.set_wakeup_fd(-1)
        os.umask(0o77)
        if self.closed:
            os.chdir(self.closed)
            sys.meta_path.append(layout.RelativeFinder(self.closed))  # type: ignore[arg-type]
        if self.user is not None:
            os.setgroups([])
            os.setresgid(self.user, self.user, self.user)
            os.setresuid(self.user, self.user, self.user)
        prctl(_DEATH_SIGNAL, signal.SIGKILL)  # after the change of user, which would clear it
        if os.getppid() != parent:
            os._exit(1)
        if self.filter is not None:
            prctl(_DUMPABLE, 0)
            prctl(_NO_NEW_PRIVS, 1)
        if self.rules is not None:
            landlock.restrict(self.rules)
        arrange(descriptors)
        limit_resources(limits, self.threads)
        if self.filter is not None:
            seccomp.install(self.filter, os.getpid())


def harden_server() -> None:
    """Protect the server: nobody can read or trace it, it writes no core file, and it adopts its orphans."""
    prctl(_DUMPABLE, 0)
    prctl(_SUBREAPER, 1)
    with suppress(AttributeError):  # missing in some C libraries: threads share one heap instead of 64 MiB each
        _LIBC.mallopt(_ARENAS, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_resources(limits: dict, threads: int | None) -> None:
    """Set soft and hard limits. The child sets them itself, because earlier limits would apply to its own start."""
    processes = [] if threads is None else [(resource.RLIMIT_NPROC, threads)]
    for name, value in (
        *processes,
        (resource.RLIMIT_AS, limits["memory"]),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, 64),
    ):
        hard = resource.getrlimit(name)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (value, value))
    resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu"], limits["cpu"] + 1))  # SIGXCPU; SIGKILL if that is ignored


def arrange(descriptors: list[int]) -> None:
    """Move these descriptors to 0, 1, 2, ... and close all others."""
    for number, high in enumerate([fcntl.fcntl(one, fcntl.F_DUPFD, _ABOVE) for one in descriptors]):
        os.dup2(high, number)
    os.closerange(len(descriptors), 1 << 20)


def prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)):
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")
