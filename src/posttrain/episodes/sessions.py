"""The processes of trajectories as the trainer's process sees them: their sockets and their clocks.

Nobody waits here unless it is asked for: requests are sent, and whoever drives the trajectories polls between two
tokens. What is late is killed, with everything that it has started.
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
"""Where Python says why it does not start; what the host prints later goes nowhere."""
TICK = 1.0
"""Seconds after which whoever waits looks at the clock again."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What the processes run."""

    environment: Target | None = None
    form: str = ""
    """The library that the environment is one of (adapters/); empty: it is a class of ours."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[Tool] = ()
    agent: AgentSetup | None = None
    """In place of an environment and tools."""
    most_characters: int = 4000
    """Most characters in the result of a tool."""
    timeout: float = 30.0
    """Seconds for each request."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What came of a request."""

    kind: Literal["value", "exception", "timeout", "crash"]
    value: Mapping[str, Any] = field(default_factory=dict)
    message: str = ""
    traceback: str = ""
    seconds: float = 0.0
    """From the request to the reply."""


class Session:
    """One trajectory's process. Made by `Sessions`."""

    def __init__(self, channel: socket.socket, mark: str, seed: int) -> None:
        self.channel, self.mark, self.seed = channel, mark, seed
        self.pid: int | None = None
        self.reply: Reply | None = None
        """The reply to the last request, once it is there."""
        self.asked: float | None = None
        """When the request was made that has no reply yet."""
        self.outgoing, self.incoming = memoryview(b""), bytearray()
        self.begun = False
        self.ending = False
        self.ended = "its process ended"
        """Why it is over, once it is: what is asked then gets this as a reply."""


class Sessions:
    """A host, started when it is first needed, and the processes that were forked from it."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._host: LocalChild | None = None
        self._open: set[Session] = set()
        self._selector = selectors.DefaultSelector()
        self.schemas: list[dict[str, Any]] = []
        """The schemas of the tools, including those of the environment."""
        self.speaks = False
        """Does the environment answer turns that call no tool?"""

    # --- the host ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Import the environment and the tools. ConfigError says what is wrong with them."""
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
        """Kill all processes."""
        self.kill_all()
        if self._host is not None:
            self._host.kill()
            self._host = None

    # --- one trajectory ----------------------------------------------------------------------------------------------

    def open(self, seed: int) -> Session:
        """A process that has not been asked anything; `seed` is what its random numbers start from."""
        if self._host is None or self._host.end() is not None:
            for session in list(self._open):  # a host that ended has taken its forks with it
                self._fail(session, "crash", "the host ended")
            self.close()
            self.start()
        assert self._host is not None
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        session = Session(ours, secrets.token_hex(16), seed)
        with theirs, suppress(OSError):  # a host that has just died leaves a socket that nobody answers
            socket.send_fds(self._host.channel, [b"f"], [theirs.fileno()])
        self._open.add(session)
        self._selector.register(ours, selectors.EVENT_READ, session)
        return session

    def ask(self, session: Session, do: str, **arguments: Any) -> None:
        """Send a request; what comes of it will stand in `reply`. DataError for what cannot be sent.

        A process that has ended since the last request replies with a crash.
        """
        if session not in self._open:
            session.reply = _over(session)
            return
        message: dict[str, Any] = {"do": do, "with": arguments}
        if not session.begun:
            message |= {"mark": session.mark, "seed": session.seed}
        session.begun, session.reply, session.asked = True, None, time.monotonic()
        session.outgoing = memoryview(wire.encode(message))
        self._send(session)

    def end(self, session: Session) -> None:
        """Ask it to close, and wait for nothing."""
        if session in self._open:
            session.ending = True
            if session.begun:
                self.ask(session, "close")
            else:
                self._forget(session)

    def kill(self, session: Session) -> None:
        """At once, with everything that it has started."""
        if session in self._open:
            self._kill(session)

    def kill_all(self) -> None:
        """Whatever trajectories they are of."""
        for session in list(self._open):
            self._kill(session)

    def fileno(self) -> int:
        """The objects that become readable when a process has sent something."""
        return self._selector.fileno()

    def poll(self, patience: float = 0.0) -> None:
        """Move what there is to move; wait for it so many seconds at most."""
        for key, events in self._selector.select(patience) if self._open else ():
            session: Session = key.data
            if events & selectors.EVENT_WRITE:
                self._send(session)
            if events & selectors.EVENT_READ and session in self._open:
                self._receive(session)
        now = time.monotonic()
        for session in [s for s in self._open if s.asked is not None and now - s.asked > self.setup.timeout]:
            self._fail(session, "timeout", f"no result after {self.setup.timeout:g} s")

    def wait(self, session: Session) -> Reply:
        """Until the reply is there: a crash where none can come, because the process is gone."""
        self.wait_for_any([session])
        return session.reply or _over(session)

    def wait_for_any(self, sessions: Collection[Session]) -> None:
        """Until one of them has replied, if there are any."""
        while sessions and not any(map(self.has_replied, sessions)):
            self.poll(min(TICK, self.setup.timeout))

    def has_replied(self, session: Session) -> bool:
        """To the last request, or never will, because its process is gone."""
        return session.reply is not None or session not in self._open

    def settle(self) -> None:
        """Wait until all that were asked to close have done so, or are late."""
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
        """End it. A reply that is there already stays: nobody may have read it yet."""
        if session.reply is None:
            seconds = 0.0 if session.asked is None else time.monotonic() - session.asked
            session.reply = Reply(kind=kind, message=message, seconds=seconds)
        session.asked, session.ended = None, message
        self._kill(session)

    def _kill(self, session: Session) -> None:
        if session in self._open and session.pid is None:
            self._hear_pid(session)
        if session.pid is not None:
            kill_tree(session.pid, session.mark)
            session.pid = None  # the number may be another process's from now on
        self._forget(session)

    def _hear_pid(self, session: Session) -> None:
        """A process that has said which it is may have begun what never ends; one that cannot say so any more ends."""
        with suppress(OSError):
            session.channel.shutdown(socket.SHUT_RD)  # from now on it can send nothing, and what it sent can be read
            while received := session.channel.recv(1 << 20):
                session.incoming += received
        for message in wire.decode(session.incoming):
            session.pid = message.get("pid", session.pid)

    def _forget(self, session: Session) -> None:
        """Its process ends by itself when its socket closes."""
        if session in self._open:
            self._open.remove(session)
            self._selector.unregister(session.channel)
            session.channel.close()


def _answer(host: socket.socket, setup: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the host found."""
    message, buffer, what = wire.encode(setup), bytearray(), "the environment and the tools"
    try:
        host.sendall(message)
        while received := host.recv(1 << 20):
            buffer += received
            for found in wire.decode(buffer):
                return found
    except TimeoutError:
        return {"failed": {"given": f"importing {what} took more than {LOAD_TIMEOUT:g} s"}}
    except OSError:  # it has ended before it heard all
        pass
    return {"failed": {"given": f"the process that imports {what} ended"}}


def _over(session: Session) -> Reply:
    return Reply(kind="crash", message=session.ended)
