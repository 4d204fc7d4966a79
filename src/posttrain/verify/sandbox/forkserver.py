"""A fork-server, seen from its parent: a process, a socket to it, and one program at a time."""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from posttrain.errors import SandboxUnavailable
from posttrain.verify.sandbox.process import Process
from posttrain.verify.sandbox.records import Limits

START_TIMEOUT = 20.0
"""Timeout for the start of the interpreter and its imports, in seconds. They take 0.1 s on an idle machine."""
CONTAINER_TIMEOUT = 300.0
"""Timeout for the start of a container, in seconds. Its image may have to be pulled first."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """The command with which a tier starts a fork-server."""

    line: list[str]
    """The command line without the setup, which is appended as JSON."""
    setup: dict[str, Any]
    """The settings for `inside/server.py`. `socket` and `parent` are added."""
    meeting: str | None = None
    """If the fork-server cannot inherit a socket: the folder, on its side, with a socket on which we listen. In the
    command line, {meeting} stands for the same folder on our side."""
    on_close: list[str] | None = None
    """Command to run if the fork-server does not end on its own."""


class ForkServer:
    """A fork-server, which starts when the object is created. SandboxUnavailable says why it did not start."""

    def __init__(self, command: Command) -> None:
        from posttrain.verify.sandbox.inside import server  # noqa: F401 (writes the bytecode, which -B does not)

        self._on_close = command.on_close
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        self._folder: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.control: socket.socket | None = None
        try:
            self.control = self._meet(command) if command.meeting else self._inherit(command)
            self.hello = self._hear(self.control)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        assert self._process is not None
        return self._process.poll() is None

    def begin(self, source: str, stdin: bytes, limits: Limits, on_end: Callable[[bool], None]) -> Process:
        assert self.control is not None
        return Process(self.control, source, stdin, limits, on_end)

    def close(self) -> None:
        """End the fork-server and its program. Returns when they are gone."""
        if self.control is not None:
            with suppress(OSError):
                self.control.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for a program
            self.control.close()
        if self._process is not None:
            self._end(self._process)
        self._stderr.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    # --- the two ways to meet ----------------------------------------------------------------------------------------

    def _inherit(self, command: Command) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        alive = os.pidfd_open(os.getpid())  # tells it when this process ends, even if others hold the socket
        try:
            given = (theirs.fileno(), alive)
            self._start(command.line, {**command.setup, "socket": given[0], "parent": alive}, given)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(alive)
        return ours

    def _meet(self, command: Command) -> socket.socket:
        """Wait for the connection of a container. The shared folder is open to its user, but its parent is closed."""
        self._folder = tempfile.mkdtemp(prefix="posttrain-sandbox-")
        place = Path(self._folder) / "run"
        place.mkdir()
        place.chmod(0o755)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(place / "socket"))
            (place / "socket").chmod(0o666)
            listener.listen(1)
            line = [word.replace("{meeting}", str(place)) for word in command.line]
            process = self._start(line, {**command.setup, "socket": f"{command.meeting}/socket", "parent": None}, ())
            watch = os.pidfd_open(process.pid)
            try:
                ready = select.select([listener, watch], [], [], CONTAINER_TIMEOUT)[0]
            finally:
                os.close(watch)
            if listener not in ready:
                raise SandboxUnavailable(given=self._last_words() or f"no answer within {CONTAINER_TIMEOUT:g} s")
            return listener.accept()[0]

    def _start(self, line: list[str], setup: dict[str, Any], inherits: tuple[int, ...]) -> subprocess.Popen[bytes]:
        kept = ("PATH", "HOME", "XDG_RUNTIME_DIR", "DOCKER_HOST", "DOCKER_CONFIG") if not inherits else ("PATH",)
        environment = {name: os.environ[name] for name in kept if name in os.environ}
        try:
            self._process = subprocess.Popen(
                [*line, json.dumps(setup)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                pass_fds=inherits,
                env={**environment, "PYTHONHASHSEED": "0"},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxUnavailable(given=f"{line[0]} did not start: {error.strerror}") from error
        return self._process

    # --- beginning and end -------------------------------------------------------------------------------------------

    def _hear(self, control: socket.socket) -> dict[str, Any]:
        ready = select.select([control], [], [], START_TIMEOUT)[0]
        message = control.recv(4096) if ready else b""
        hello = json.loads(message) if message else {}
        if "hello" in hello:
            return hello
        silence = "its fork-server ended" if ready else f"its fork-server said nothing for {START_TIMEOUT:g} s"
        raise SandboxUnavailable(given=hello.get("failed") or self._last_words() or silence)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        if process.returncode is None:
            if self._on_close:
                subprocess.run(self._on_close, stdin=subprocess.DEVNULL, capture_output=True, check=False)
            with suppress(psutil.NoSuchProcess):
                server = psutil.Process(process.pid)
                for one in (*server.children(recursive=True), server):  # init of a namespace takes all others with it
                    with suppress(psutil.NoSuchProcess):
                        one.kill()
            process.wait()

    def _last_words(self) -> str:
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._stderr.seek(0)
        lines = self._stderr.read().decode("utf-8", "replace").strip().splitlines()
        return "; ".join(line for line in lines[-3:] if line)
