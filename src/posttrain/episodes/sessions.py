"""The processes of trajectories as the trainer's process sees them: their sockets and their deadlines.

Only the methods that wait block. Requests are sent without waiting, and the conductor polls between two tokens. A
process that exceeds the timeout is killed, with everything that it has started.
"""

from __future__ import annotations

import os
import secrets
import selectors
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from posttrain import wire
from posttrain.child import LocalChild
from posttrain.descendants import kill_tree
from posttrain.episodes.agents.setup import AgentSetup
from posttrain.episodes.tools import Tool
from posttrain.errors import ConfigError
from posttrain.heartbeat import beat
from posttrain.rewards.load import Target
from posttrain.rewards.worker_process import LOAD_TIMEOUT

_STDERR = 2
"""File descriptor on which Python reports why it does not start. The host discards its later output."""
TICK = 1.0
"""Maximum seconds of one wait, after which the clock is checked again."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The environment, tools or agent that the processes run."""

    environment: Target | None = None
    form: str = ""
    """The library that the environment comes from (adapters/); empty: a class with our interface."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[Tool] = ()
    agent: AgentSetup | None = None
    """An agent, in place of an environment and tools."""
    most_characters: int = 4000
    """Maximum characters in the result of a tool."""
    timeout: float = 30.0
    """Seconds for each request; in a turn that calls several tools, for each call."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The outcome of a request."""

    kind: Literal["value", "exception", "timeout", "crash"]
    value: Mapping[str, Any] = field(default_factory=dict)
    """What the request returned. If the process is late or gone: the results of the calls that finished before."""
    message: str = ""
    traceback: str = ""
    seconds: float = 0.0
    """Seconds from the request to the reply."""


class Session:
    """One trajectory's process. Made by `Sessions`."""

    def __init__(self, channel: socket.socket, mark: str, seed: int) -> None:
        self.channel, self.mark, self.seed = channel, mark, seed
        self.pid: int | None = None
        self.reply: Reply | None = None
        """The reply to the last request; None until it arrives."""
        self.asked: float | None = None
        """Time of the request that has no reply yet; None if there is none."""
        self.heard = 0.0
        """Time of the last result of a call during this request, or of the request."""
        self.results: list[tuple[dict[str, Any], bool]] = []
        """Results of the calls that finished during this request: messages, and whether the calls failed."""
        self.outgoing, self.incoming = memoryview(b""), bytearray()
        self.begun = False
        self.ending = False
        self.ended = "its process ended"
        """The reason why it is over, once it is over. Later requests get it as their reply."""


class Sessions:
    """The host process, started when it is first needed, and the processes that are forked from it."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._host: LocalChild | None = None
        self._open: set[Session] = set()
        self._selector = selectors.DefaultSelector()
        self.schemas: list[dict[str, Any]] = []
        """The schemas of the tools, including those of the environment."""
        self.speaks = False
        """Whether the environment answers turns that call no tool."""

    # --- the host ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the host, which imports the environment and the tools. ConfigError says what is wrong with them."""
        environment = {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")}
        host = self._host = LocalChild(["-m", "posttrain.episodes.host"], _STDERR, environment=environment)
        host.channel.settimeout(LOAD_TIMEOUT)
        found = _answer(
            host.channel,
            {
                "environment": None if self.setup.environment is None else asdict(self.setup.environment),
                "form": self.setup.form,
                "settings": self.setup.settings,
                "tools": [asdict(target) for target in self.setup.tools],
                "agent": None if self.setup.agent is None else asdict(self.setup.agent),
                "most_characters": self.setup.most_characters,
            },
        )
        if "failed" in found:
            self.close()
            raise ConfigError(**found["failed"])
        self.schemas, self.speaks = found["schemas"], found["speaks"]

    def close(self) -> None:
        """Kill the host and all sessions."""
        self.kill_all()
        if self._host is not None:
            self._host.kill()
            self._host = None

    # --- one trajectory ----------------------------------------------------------------------------------------------

    def open(self, seed: int) -> Session:
        """Return a new process without requests so far; `seed` seeds its random numbers."""
        if self._host is None or self._host.end() is not None:
            for session in list(self._open):  # a host that ended has taken its forks with it
                self._fail(session, "crash", "the host ended")
            self.close()
            self.start()
        assert self._host is not None
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        session = Session(ours, secrets.token_hex(16), seed)
        with theirs, suppress(OSError):  # if the host has just died, nobody answers on this socket
            socket.send_fds(self._host.channel, [b"f"], [theirs.fileno()])
        self._open.add(session)
        self._selector.register(ours, selectors.EVENT_READ, session)
        return session

    def ask(self, session: Session, do: str, **arguments: Any) -> None:
        """Send a request; its outcome will be in `reply`. Raises DataError for arguments that cannot be sent.

        If the process has ended since the last request, the reply is a crash.
        """
        if session not in self._open:
            session.reply = _over(session)
            return
        message: dict[str, Any] = {"do": do, "with": arguments}
        if not session.begun:
            message |= {"mark": session.mark, "seed": session.seed}
        session.begun, session.reply, session.asked = True, None, time.monotonic()
        session.heard, session.results = session.asked, []
        session.outgoing = memoryview(wire.encode(message))
        self._send(session)

    def end(self, session: Session) -> None:
        """Ask the process to close, without waiting for it."""
        if session in self._open:
            session.ending = True
            if session.begun:
                self.ask(session, "close")
            else:
                self._forget(session)

    def kill(self, session: Session) -> None:
        """Kill the process immediately, with everything that it has started."""
        if session in self._open:
            self._kill(session)

    def kill_all(self) -> None:
        """Kill the processes of all trajectories."""
        for session in list(self._open):
            self._kill(session)

    def fileno(self) -> int:
        """Return a file descriptor that becomes readable when a process has sent something."""
        return self._selector.fileno()

    def poll(self, patience: float = 0.0) -> None:
        """Send and receive the bytes that are ready; wait at most `patience` seconds for some. Check the deadlines."""
        for key, events in self._selector.select(patience) if self._open else ():
            session: Session = key.data
            if events & selectors.EVENT_WRITE:
                self._send(session)
            if events & selectors.EVENT_READ and session in self._open:
                self._receive(session)
        now = time.monotonic()
        for session in [s for s in self._open if s.asked is not None and now - s.heard > self.setup.timeout]:
            self._fail(session, "timeout", f"no result after {self.setup.timeout:g} s")

    def wait(self, session: Session) -> Reply:
        """Wait for the reply and return it: a crash if the process is gone and none can come."""
        self.wait_for_any([session])
        return session.reply or _over(session)

    def wait_for_any(self, sessions: Collection[Session]) -> None:
        """Wait until one of them has replied; return immediately if there are none."""
        while sessions and not any(map(self.has_replied, sessions)):
            self.poll(min(TICK, self.setup.timeout))

    def has_replied(self, session: Session) -> bool:
        """Return whether the last request has a reply, or can never get one because the process is gone."""
        return session.reply is not None or session not in self._open

    def settle(self) -> None:
        """Wait until all processes that were asked to close have closed, or have exceeded the timeout."""
        while any(session.ending for session in self._open):
            self.poll(TICK)

    # --- bytes -------------------------------------------------------------------------------------------------------

    def _send(self, session: Session) -> None:
        try:
            session.outgoing = session.outgoing[session.channel.send(session.outgoing) :]
        except BlockingIOError:
            pass
        except OSError:
            self._fail(session, "crash", "its process ended")
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if session.outgoing else 0)
        self._selector.modify(session.channel, wanted, session)

    def _receive(self, session: Session) -> None:
        try:
            received = session.channel.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        session.incoming += received
        for message in wire.decode(session.incoming):
            self._hear(session, message)
        if not received and session in self._open:
            self._fail(session, "crash", "its process ended")

    def _hear(self, session: Session, message: Mapping[str, Any]) -> None:
        if "pid" in message:
            session.pid = message["pid"]
            return
        beat("an environment answered")
        if "result" in message:
            session.results.append(tuple(message["result"]))
            session.heard = time.monotonic()
            return
        seconds = 0.0 if session.asked is None else time.monotonic() - session.asked
        session.asked = None
        if session.ending:
            clean = "failed" not in message and not message["value"].get("leaves")
            (self._forget if clean else self._kill)(session)
        elif "failed" in message:
            session.reply = Reply(
                kind="exception", message=message["failed"], traceback=message["traceback"], seconds=seconds
            )
        else:
            session.reply = Reply(kind="value", value=message["value"], seconds=seconds)

    def _fail(self, session: Session, kind: Literal["timeout", "crash"], message: str) -> None:
        """End a session. Keep a reply that has already arrived: it may not have been read yet."""
        if session.reply is None:
            seconds = 0.0 if session.asked is None else time.monotonic() - session.asked
            messages, errors = [one for one, _ in session.results], [wrong for _, wrong in session.results]
            results = {"messages": messages, "errors": errors}
            session.reply = Reply(kind=kind, value=results, message=message, seconds=seconds)
        session.asked, session.ended = None, message
        self._kill(session)

    def _kill(self, session: Session) -> None:
        if session in self._open and session.pid is None:
            self._hear_pid(session)
        if session.pid is not None:
            kill_tree(session.pid, session.mark)
            session.pid = None  # the number may belong to another process from now on
        self._forget(session)

    def _hear_pid(self, session: Session) -> None:
        """Learn the process id of a session, if its process has sent it.

        A process that has sent it may have started something that never ends. One that cannot send it any more ends.
        """
        with suppress(OSError):
            session.channel.shutdown(socket.SHUT_RD)  # it can send nothing more, and what it has sent can be read
            while received := session.channel.recv(1 << 20):
                session.incoming += received
        for message in wire.decode(session.incoming):
            session.pid = message.get("pid", session.pid)

    def _forget(self, session: Session) -> None:
        """Close the session's socket. Its process then ends on its own."""
        if session in self._open:
            self._open.remove(session)
            self._selector.unregister(session.channel)
            session.channel.close()


def _answer(host: socket.socket, setup: Mapping[str, Any]) -> Mapping[str, Any]:
    """Send the setup to the host and return what it found."""
    message, buffer, what = wire.encode(setup), bytearray(), "the environment and the tools"
    try:
        host.sendall(message)
        while received := host.recv(1 << 20):
            buffer += received
            for found in wire.decode(buffer):
                return found
    except TimeoutError:
        return {"failed": {"given": f"importing {what} took more than {LOAD_TIMEOUT:g} s"}}
    except OSError:  # the host ended before it had read everything
        pass
    return {"failed": {"given": f"the process that imports {what} ended"}}


def _over(session: Session) -> Reply:
    return Reply(kind="crash", message=session.ended)
