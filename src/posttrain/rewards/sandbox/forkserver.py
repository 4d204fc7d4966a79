"""A fork-server as its parent sees it: a process, a socket to it, and one program at a time."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from posttrain.errors import SandboxUnavailable
from posttrain.rewards.sandbox.process import Process
from posttrain.rewards.sandbox.records import Limits

START_TIMEOUT = 20.0
"""Seconds for the interpreter to start and to import what programs use; 0.1 on an idle machine."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """How a tier starts a fork-server."""

    line: list[str]
    """The command up to and without the setup, which comes last as JSON."""
    setup: dict[str, Any]
    """What `inside/server.py` reads; `socket` and `parent` are added."""
    inherits: tuple[int, ...] = field(default=())


class ForkServer:
    """Starts with the object. SandboxUnavailable says why it did not."""

    def __init__(self, command: Command) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        alive = os.pidfd_open(os.getpid())  # tells it that this process has ended, whoever holds a copy of the socket
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        setup = {**command.setup, "socket": theirs.fileno(), "parent": alive}
        try:
            self._process = subprocess.Popen(
                [*command.line, json.dumps(setup)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                pass_fds=(theirs.fileno(), alive),
                env={"PYTHONHASHSEED": "0", "PATH": os.environ.get("PATH", os.defpath)},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            self.control.close()
            raise SandboxUnavailable(given=f"{command.line[0]} did not start: {error.strerror}") from error
        finally:
            theirs.close()
            os.close(alive)
        self.hello = self._hear()

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self, source: str, stdin: bytes, limits: Limits, on_end: Callable[[bool], None]) -> Process:
        return Process(self.control, source, stdin, limits, on_end)

    def close(self) -> None:
        """End it and what runs in it; returns when it is gone."""
        self.control.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._stderr.close()

    def _hear(self) -> dict[str, Any]:
        ready = select.select([self.control], [], [], START_TIMEOUT)[0]
        message = self.control.recv(4096) if ready else b""
        hello = json.loads(message) if message else {}
        if "hello" in hello:
            return hello
        reason = (
            hello.get("failed") or self._last_words() or ("it ended" if ready else f"silent for {START_TIMEOUT:g} s")
        )
        self.close()
        raise SandboxUnavailable(given=reason)

    def _last_words(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._stderr.seek(0)
        lines = self._stderr.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""
