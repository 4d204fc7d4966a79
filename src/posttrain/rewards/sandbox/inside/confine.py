"""What a forked child gives up before it runs a program, in the order in which each step is still possible."""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal

from . import landlock, seccomp

_NO_NEW_PRIVS, _DEATH_SIGNAL, _DUMPABLE, _SUBREAPER = 38, 1, 4, 36
_ABOVE = 100
"""Descriptors are first moved up to here, so that none is overwritten before it has been copied."""


class Confinement:
    """The parts of a confinement that are made once, before the first program: filter and rules."""

    def __init__(self, setup: dict) -> None:
        self.filter = seccomp.build() if setup["seccomp"] else None
        self.rules: int | None = None
        self.user: int | None = setup["user"]
        if setup["landlock"] != "off":
            try:
                self.rules = landlock.ruleset(setup["readable"], setup["writable"])
            except OSError:
                if setup["landlock"] == "required":
                    raise

    def apply(self, limits: dict, descriptors: list[int], parent: int) -> None:
        """Put the calling process, just forked by `parent`, under it; `descriptors` become 0, 1, 2 and 3."""
        os.setsid()
        signal.set_wakeup_fd(-1)
        os.umask(0o77)
        if self.user is not None:
            os.setgroups([])
            os.setresgid(self.user, self.user, self.user)
            os.setresuid(self.user, self.user, self.user)
        prctl(_DEATH_SIGNAL, signal.SIGKILL)  # after the change of user, which clears it
        if os.getppid() != parent:
            os._exit(1)
        if self.filter is not None:
            prctl(_DUMPABLE, 0)
            prctl(_NO_NEW_PRIVS, 1)
        if self.rules is not None:
            landlock.restrict(self.rules)
        arrange(descriptors)
        limit_resources(limits)
        if self.filter is not None:
            seccomp.install(self.filter, os.getpid())


def harden_server() -> None:
    """Nobody reads or traces the server, no core of it is written, and orphans of its children come to it."""
    prctl(_DUMPABLE, 0)
    prctl(_SUBREAPER, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_resources(limits: dict) -> None:
    """Hard limits equal soft ones. RLIMIT_NPROC is left out: it counts per user, whoever else that user is."""
    for name, value in (
        (resource.RLIMIT_AS, limits["memory"]),
        (resource.RLIMIT_CPU, limits["cpu"]),
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


def arrange(descriptors: list[int]) -> None:
    """Make these 0, 1, 2 ... and close every other."""
    for number, high in enumerate([fcntl.fcntl(one, fcntl.F_DUPFD, _ABOVE) for one in descriptors]):
        os.dup2(high, number)
    os.closerange(len(descriptors), 1 << 20)


def prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)):
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")
