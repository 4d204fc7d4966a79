"""A sandbox: fork-servers of one tier, as many as programs run at the same time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from posttrain.errors import SandboxUnavailable
from posttrain.rewards.sandbox.forkserver import Command, ForkServer
from posttrain.rewards.sandbox.process import Process
from posttrain.rewards.sandbox.records import Limits, Ran
from posttrain.rewards.sandbox.tiers import landlock


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
        """End every fork-server and what runs in it."""
        with self._lock:
            servers, self._all, self._idle = self._all, [], []
        for server in servers:
            server.close()

    def start(self, source: str, *, stdin: bytes = b"", limits: Limits | None = None) -> Process:
        """A program to talk with. It gets a fork-server of its own, a new one (0.1 s) if all that there are work."""
        server = self._take()
        return server.begin(source, stdin, limits or self.limits, lambda healthy: self._give_back(server, healthy))

    def run(self, source: str, stdin: bytes = b"", limits: Limits | None = None) -> Ran:
        """Run a program to its end. If it could not be run it is tried once more, then SandboxUnavailable is raised."""
        try:
            return self.start(source, stdin=stdin, limits=limits).finish()
        except SandboxUnavailable:
            return self.start(source, stdin=stdin, limits=limits).finish()

    def run_many(self, programs: Sequence[tuple[str, bytes]], limits: Limits | None = None) -> list[Ran]:
        """Pairs of source and stdin, `size` at a time; one result per pair, in order."""
        with ThreadPoolExecutor(max_workers=self.size, thread_name_prefix="sandbox") as threads:
            return list(threads.map(lambda program: self.run(*program, limits=limits), programs))

    def _take(self) -> ForkServer:
        with self._lock:
            if self._idle:
                return self._idle.pop()
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


def open_sandbox(kind: str = "auto", limits: Limits | None = None, *, size: int | None = None) -> Sandbox:
    sandbox = Sandbox("landlock", landlock(), limits or Limits(), size or len(os.sched_getaffinity(0)))
    sandbox.run("")
    return sandbox
