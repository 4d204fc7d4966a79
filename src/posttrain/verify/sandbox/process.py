"""A program that runs in a sandbox, seen from the process that judges it."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from posttrain.errors import SandboxUnavailable
from posttrain.verify.sandbox.inside.program import OUT_OF_MEMORY
from posttrain.verify.sandbox.records import Ended, Limits, Ran

GRACE = 0.4
"""Seconds after a program's deadline in which its end must be reported. Then its fork-server is killed with it."""
_CHUNK = 1 << 16


class Process:
    """A running program. `finish` waits for its end. Leaving a `with` block kills it."""

    def __init__(
        self, control: socket.socket, source: str, stdin: bytes, limits: Limits, on_end: Callable[[bool], None]
    ) -> None:
        """`on_end(healthy)` is called once, when the fork-server behind `control` is free again or unusable."""
        self._control, self._limits, self._on_end = control, limits, on_end
        self._report: dict[str, Any] | None = None
        self._broken = ""
        self._overdue = self._excess = self._confined = self._closed = False
        self._messages: deque[bytes] = deque()
        self._ran: Ran | None = None
        self._stdin, self._stdout, self._stderr, self._channel = self._launch()
        self._data = {one: bytearray() for one in (self._stdout, self._stderr, self._channel.fileno())}
        self._open = set(self._data)
        self._received, self._seconds = 0, 0.0
        self._outgoing = {self._stdin: bytearray(stdin), self._channel.fileno(): bytearray()}
        self.send(source.encode("utf-8", "replace"))

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(SandboxUnavailable):
            self.kill()

    def send(self, message: bytes) -> None:
        """Send one whole message to the program. It is written while this or another method waits."""
        self._enqueue(message)
        self._pump(0)

    def receive(self, timeout: float | None = None) -> bytes:
        """The program's next message. TimeoutError: none came in time. EOFError: the program ended without one."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self._messages:
            left = None if until is None else until - time.monotonic()
            if self._over:
                raise EOFError("the program ended and sent no further message")
            if left is not None and left < 0:
                raise TimeoutError(f"the program sent no message within {timeout:g} s")
            self._pump(left)
        return self._messages.popleft()

    def finish(self) -> Ran:
        """Wait for the program's end, which its limits guarantee. SandboxUnavailable: it did not run."""
        if not self._closed:
            self._no_more_messages()
            while not self._over:
                self._pump(None)
            self._seconds = time.monotonic() - self._began
            self._close()
            self._on_end(not self._broken and not self._overdue)
        if self._ran is None:
            self._ran = self._conclude()
        return self._ran

    def kill(self) -> Ran:
        """Kill the program."""
        if not self._closed and self._report is None:
            self._ask_to_kill()
        return self.finish()

    # --- descriptors -------------------------------------------------------------------------------------------------

    def _launch(self) -> tuple[int, int, int, socket.socket]:
        stdin_end, stdin = os.pipe()
        stdout, stdout_end = os.pipe()
        stderr, stderr_end = os.pipe()
        channel, channel_end = socket.socketpair()
        for one in (stdin, stdout, stderr, channel.fileno()):
            os.set_blocking(one, False)
        self._began = time.monotonic()
        try:
            request = json.dumps(self._limits.to_request()).encode()
            socket.send_fds(self._control, [request], [stdin_end, stdout_end, stderr_end, channel_end.fileno()])
        except OSError as error:
            self._broken = f"the fork-server is gone ({error.strerror})"
        channel_end.close()
        for one in (stdin_end, stdout_end, stderr_end):
            os.close(one)
        return stdin, stdout, stderr, channel

    @property
    def _over(self) -> bool:
        return bool(self._broken) or self._overdue or (self._report is not None and not self._open)

    def _enqueue(self, message: bytes) -> None:
        if (waiting := self._outgoing.get(self._channel.fileno())) is not None:
            waiting += struct.pack(">I", len(message)) + message

    def _no_more_messages(self) -> None:
        while self._outgoing.get(self._channel.fileno()) and not self._over:
            self._pump(None)
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_WR)

    def _close(self) -> None:
        self._closed = True
        self._channel.close()
        for one in (self._stdout, self._stderr, *([self._stdin] if self._stdin in self._outgoing else [])):
            os.close(one)

    def _ask_to_kill(self) -> None:
        with suppress(OSError):
            self._control.send(b"kill")

    # --- moving bytes ------------------------------------------------------------------------------------------------

    def _pump(self, timeout: float | None) -> None:
        """Wait until bytes can be moved, for `timeout` seconds or until the program's deadline, and move them."""
        now, last = time.monotonic(), self._began + self._limits.wall + GRACE
        if self._report is None and now > last:
            self._overdue = True
            return
        if self._control.fileno() < 0:
            self._broken = "the sandbox was closed"
            return
        poll = select.poll()
        if self._report is None:
            poll.register(self._control, select.POLLIN)
        for one in self._open | {one for one, data in self._outgoing.items() if data or one == self._stdin}:
            reads, writes = one in self._open, bool(self._outgoing.get(one)) or one == self._stdin
            poll.register(one, select.POLLIN * reads | select.POLLOUT * writes)
        wait = min(last - now, last - now if timeout is None else timeout)
        for one, events in poll.poll(max(0.0, wait) * 1000 + 1):
            if one == self._control.fileno():
                self._read_report()
                continue
            if one in self._outgoing and events & (select.POLLOUT | select.POLLERR):
                self._write(one)
            if one in self._open and events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                self._read(one)

    def _write(self, to: int) -> None:
        waiting = self._outgoing[to]
        try:
            sent = os.write(to, waiting[:_CHUNK]) if waiting else 0
        except BlockingIOError:
            return
        except OSError:  # the program has ended or closed its end
            sent = len(waiting)
        del waiting[:sent]
        if to == self._stdin and not waiting:
            del self._outgoing[to]
            os.close(to)

    def _read(self, source: int) -> None:
        try:
            data = os.read(source, _CHUNK)
        except BlockingIOError:
            return
        except ConnectionResetError:  # the program ended without reading all messages
            data = b""
        if not data:
            self._open.discard(source)
            self._outgoing.pop(source, None)
        elif not self._excess or not self._confined:  # output may arrive before the message that confinement is done
            self._data[source] += data
            self._count(source, len(data))

    def _count(self, source: int, size: int) -> None:
        """Count received bytes. Beyond the limit of both streams or of all messages, the program is killed."""
        channel = self._channel.fileno()
        if source == channel:
            self._received += size
            excess = self._split(self._data[channel]) or self._received > self._limits.message
        else:
            excess = len(self._data[self._stdout]) + len(self._data[self._stderr]) > self._limits.output
        if excess:
            self._excess = True
            self._ask_to_kill()

    def _split(self, received: bytearray) -> bool:
        """Take whole messages off the front. True if an announced message is larger than allowed."""
        while len(received) >= 4:
            (size,) = struct.unpack_from(">I", received)
            if size > self._limits.message:
                return True
            if len(received) < 4 + size:
                return False
            message = bytes(received[4 : 4 + size])
            del received[: 4 + size]
            if self._confined:
                self._messages.append(message)
            elif message:
                self._broken = message.decode("utf-8", "replace")
            self._confined = True
        return False

    # --- the end -----------------------------------------------------------------------------------------------------

    def _read_report(self) -> None:
        try:
            report = self._control.recv(4096)
        except OSError:
            report = b""
        if report:
            self._report = json.loads(report)
        else:
            self._broken = self._broken or "the fork-server ended"

    def _conclude(self) -> Ran:
        returncode = os.waitstatus_to_exitcode(self._report["status"]) if self._report else -signal.SIGKILL
        ended = self._how(returncode)
        if self._broken or (not self._confined and ended != "wall"):
            reason = self._broken or f"a child ended with {returncode} before it was confined"
            raise SandboxUnavailable(given=f"the sandbox did not run a program: {reason}")
        stdout, stderr = bytes(self._data[self._stdout]), bytes(self._data[self._stderr])
        return Ran(
            returncode=returncode,
            ended=ended,
            stdout=stdout[: self._limits.output],
            stderr=stderr[: max(0, self._limits.output - len(stdout))],
            result=self._messages[0] if len(self._messages) == 1 else None,
            messages=tuple(self._messages),
            seconds=self._seconds,
        )

    def _how(self, returncode: int) -> Ended:
        if self._excess:
            return "output"
        if self._report is None or self._report["late"]:
            return "wall"
        used_up = self._report["cpu"] > self._limits.seconds_of_cpu
        if returncode == -signal.SIGXCPU or (returncode == -signal.SIGKILL and used_up):
            return "cpu"
        if returncode == OUT_OF_MEMORY:
            return "memory"
        return "signal" if returncode < 0 else "exited"
