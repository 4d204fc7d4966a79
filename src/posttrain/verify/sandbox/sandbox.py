"""A sandbox: fork-servers of one tier, one for each concurrent program."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from posttrain.control_groups import cores
from posttrain.errors import ConfigError, SandboxUnavailable
from posttrain.verify.sandbox import selftest, tiers
from posttrain.verify.sandbox.forkserver import Command, ForkServer
from posttrain.verify.sandbox.process import Process
from posttrain.verify.sandbox.records import Limits, Ran


class Sandbox:
    """Runs programs. Use as a context manager, or call `close`. Threads may share it."""

    def __init__(self, tier: str, command: Callable[[int], Command], limits: Limits, size: int) -> None:
        """`command(number)` starts fork-server `number`."""
        self.tier, self.limits, self.size = tier, limits, size
        self._command = command
        self._idle: list[ForkServer] = []
        self._all: list[ForkServer] = []
        self._started = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every fork-server and its program."""
        with self._lock:
            servers, self._all, self._idle = self._all, [], []
        for server in servers:
            server.close()

    def start(self, source: str, *, stdin: bytes = b"", limits: Limits | None = None) -> Process:
        """Start a program for interactive use. It gets an idle fork-server, or a new one (0.1 s) if all are busy."""
        return self._begin(self._take() or self._start(), source, stdin, limits)

    def _begin(self, server: ForkServer, source: str, stdin: bytes, limits: Limits | None) -> Process:
        return server.begin(source, stdin, limits or self.limits, lambda healthy: self._give_back(server, healthy))

    def run(self, source: str, stdin: bytes = b"", limits: Limits | None = None) -> Ran:
        """Run a program to its end. If it cannot be run, one retry follows, and then SandboxUnavailable."""
        try:
            with self.start(source, stdin=stdin, limits=limits) as process:
                return process.finish()
        except SandboxUnavailable:
            with self._begin(self._start(), source, stdin, limits) as process:
                return process.finish()

    def run_many(self, programs: Sequence[tuple[str, bytes]], limits: Limits | None = None) -> list[Ran]:
        """Run pairs of source and stdin, `size` at the same time. One result per pair, in order."""
        with ThreadPoolExecutor(max_workers=self.size, thread_name_prefix="sandbox") as threads:
            return list(threads.map(lambda program: self.run(*program, limits=limits), programs))

    def _take(self) -> ForkServer | None:
        """An idle fork-server, or None."""
        with self._lock:
            while self._idle:
                server = self._idle.pop()
                if server.alive:
                    return server
                self._all.remove(server)
                server.close()
        return None

    def _start(self) -> ForkServer:
        with self._lock:
            number = self._started
            self._started += 1
        server = ForkServer(self._command(number))
        with self._lock:
            self._all.append(server)
        return server

    def _give_back(self, server: ForkServer, healthy: bool) -> None:
        with self._lock:
            if healthy and server in self._all:
                self._idle.append(server)
                return
            if server in self._all:
                self._all.remove(server)
        server.close()


UNSAFE = "settings: {sandbox: unsafe} runs the model's programs with all rights of this user; nothing is confined"
FIXES = (
    "Install bubblewrap (apt install bubblewrap); on Ubuntu 23.10 and later also its AppArmor profile,"
    " bwrap-userns-restrict (apt install apparmor-profiles). Or run on Linux 5.13 or later with landlock among the"
    " security modules (lsm=) and seccomp allowed. Or name a container:"
    " settings: {sandbox: 'container:python:3.12-slim'}."
)
KINDS = "auto, bubblewrap, landlock, container:IMAGE or unsafe"


def open_sandbox(kind: str = "auto", limits: Limits | None = None, *, size: int | None = None) -> Sandbox:
    """Open a sandbox of this kind that has passed its self-test. SandboxUnavailable: it failed or is not available.

    `auto` uses bubblewrap, or Landlock if bubblewrap does not work. Any other kind has no fallback. `size` is the
    number of programs that `run_many` runs at the same time, by default one per core.
    """
    limits, size = limits or Limits(), size or cores()
    if sys.platform != "linux":
        raise SandboxUnavailable(
            given=f"programs can only be confined on Linux, but this is {sys.platform}",
            fix="Run it in a Linux virtual machine or container.",
        )
    tried: list[str] = []
    for name in ("bubblewrap", "landlock") if kind == "auto" else (kind,):
        try:
            return _open(name, limits, size)
        except SandboxUnavailable as error:
            tried.append(f"{name}: {error.given}")
    raise SandboxUnavailable(given=f"no sandbox works here ({'; '.join(tried)})", fix=FIXES)


def _open(name: str, limits: Limits, size: int) -> Sandbox:
    tier = _tier(name)
    sandbox = Sandbox(tier.name, tier.command, limits, size)
    try:
        if name == "unsafe":
            warnings.warn(UNSAFE, stacklevel=3)
            sandbox.run("")
        else:
            selftest.check(tier, sandbox)
    except BaseException:
        sandbox.close()
        raise
    return sandbox


def _tier(name: str) -> tiers.Tier:
    known = {"bubblewrap": tiers.bubblewrap, "landlock": tiers.landlock, "unsafe": tiers.unsafe}
    if name in known:
        return known[name]()
    kind, _, image = name.partition(":")
    if kind == "container" and image:
        return tiers.container(image)
    raise ConfigError(given=f"sandbox = {name!r}", allowed=KINDS, fix="Set settings: {sandbox: auto}.")
