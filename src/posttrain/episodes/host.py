"""The process from which the processes of trajectories are forked: `python -m posttrain.episodes.host FD`.

It imports the user's file once and reports what it found. Then it forks once for each byte that arrives over the socket
FD together with another socket. The fork answers on that socket until it closes. A fork takes milliseconds, shares the
imported modules, and has a state of its own. It dies with this process. When the trainer ends, for whatever reason, the
kernel kills this process and the process group of each fork. The group holds everything that the fork has started and
that did not leave it.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from posttrain import wire
from posttrain.descendants import MARK, keep_orphans, kill_tree, new_mark
from posttrain.episodes.adapters import opened
from posttrain.episodes.conduct import Conduct
from posttrain.episodes.tools import Tool, by_name, schema_of
from posttrain.errors import ConfigError, PosttrainError
from posttrain.rewards.calls import failed
from posttrain.rewards.worker import die_with_parent

if TYPE_CHECKING:
    from posttrain.episodes.agents.conduct import AgentConduct

_PR_SET_PDEATHSIG = 1
MOST_CLOSING = 5.0
"""Seconds that the environment which is only tried may take to close."""


def main() -> None:
    lifeline = os.dup(0)
    die_with_parent(lifeline)
    with open(os.devnull, "r+b") as nothing:
        for descriptor in range(3):
            os.dup2(nothing.fileno(), descriptor)
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    setup = next(wire.messages(control))
    with suppress(ImportError):
        importlib.import_module("numpy")  # once: each fork seeds the modules that are imported
    try:
        agent = None if setup["agent"] is None else _prepared(setup["agent"])
        environment = None
        if setup["environment"] is not None:
            environment = opened(setup, lambda function: _in_a_fork(lifeline, function))
        named = by_name([Tool(**target).load() for target in setup["tools"]])
        control.sendall(wire.encode(_in_a_fork(lifeline, lambda: _found(environment, setup, named))))
    except PosttrainError as error:
        control.sendall(wire.encode({"failed": {"given": error.given, "allowed": error.allowed, "fix": error.fix}}))
        return
    world = partial(Conduct, environment, setup["settings"], named, most_characters=setup["most_characters"])
    gc.freeze()  # so that garbage collection in a fork copies no page that it shares with this process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps forks that end
    while True:
        byte, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not byte:
            return
        host = os.getpid()
        if os.fork() == 0:
            try:
                control.close()
                channel = socket.socket(fileno=descriptors[0])
                channel.set_inheritable(False)  # processes that it starts must not keep the socket open after its death
                _stand_alone(lifeline, host)
                if agent is None:
                    _serve(channel, partial(world, tell=partial(_tell, channel)))
                else:
                    _serve_beside(channel, agent())
            finally:
                os._exit(0)
        os.close(descriptors[0])


def _prepared(agent: Mapping[str, Any]) -> Callable[[], AgentConduct]:
    """Import and check the agent. Return the function that makes the agent of one trajectory."""
    from posttrain.episodes.agents.conduct import AgentConduct, prepare, setup_of  # takes 30 ms; only agents need it

    setup = setup_of(agent)
    prepare(setup)
    return partial(AgentConduct, setup)


def _found(
    environment: Callable[..., Any] | None, setup: Mapping[str, Any], tools: Mapping[str, Callable[..., Any]]
) -> dict[str, Any]:
    """Return the schemas of all tools, and whether the environment answers turns that call none. ConfigError says what
    is wrong with them."""
    schemas = [schema_of(tool, name) for name, tool in tools.items()]
    if environment is None:
        return {"schemas": schemas, "speaks": False}
    own = _tried(environment, setup["environment"]["name"], setup["settings"], tools)
    names = [schema["function"]["name"] for schema in (*schemas, *own["schemas"])]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(
            given=f"two tools are named {twice[0]}: the environment offers one, and tools another",
            allowed="each name once",
            fix=f"Leave {twice[0]} out of tools, or rename it.",
        )
    return {"schemas": [*schemas, *own["schemas"]], "speaks": own["speaks"]}


def _tried(
    environment: Callable[..., Any], name: str, settings: Mapping[str, Any], tools: Mapping[str, Callable[..., Any]]
) -> dict[str, Any]:
    """Make one environment, and return the schemas of its tools and whether it answers turns that call none."""
    missing = not any(callable(getattr(environment, method, None)) for method in ("step", "tools"))
    if missing or not isinstance(environment, type):
        of_trl = missing and callable(getattr(environment, "reset", None))
        raise ConfigError(
            given=f"the environment {name} " + ("has no method step" if missing else "is not a class"),
            allowed="a class with the methods reset(row), step(message), tools(), turn_reward(), reward(), "
            "metrics() and close(); only step or tools is required",
            fix="Write environment = trl:path/to/file.py:Class for a class of TRL's environment_factory."
            if of_trl
            else "docs/environments.md shows one.",
        )
    try:
        conduct = Conduct(environment, settings, tools, most_characters=0, seed=0)
        offers = conduct.offers()
    except PosttrainError:
        raise
    except Exception as error:
        raise ConfigError(
            given=f"{name}(**environment.settings) raised {type(error).__name__}: {error}",
            allowed="settings that its __init__ takes",
            fix="Correct environment.settings.",
        ) from None
    closing = threading.Thread(target=_closed, args=(conduct,), daemon=True)
    closing.start()
    closing.join(MOST_CLOSING)
    return offers


def _closed(conduct: Conduct) -> None:
    with suppress(Exception):  # in a run, `reset` comes before `close`
        conduct.close()


def _in_a_fork(lifeline: int, function: Callable[[], Any]) -> Any:
    """Call a function in a fork and return its result, so that trajectories inherit nothing that it imports or starts.
    Raises the ConfigError that it raises. Everything that the function has started ends with the fork."""
    ours, theirs = socket.socketpair()
    host, mark = os.getpid(), new_mark()
    process = os.fork()
    if process == 0:
        try:
            _stand_alone(lifeline, host)
            os.environ[MARK] = mark
            message = {"value": function()}
        except PosttrainError as error:
            message = {"failed": {"given": error.given, "allowed": error.allowed, "fix": error.fix}}
        except BaseException as error:
            message = {"failed": {"given": failed(error).message}}
        theirs.sendall(wire.encode(message))
        while True:  # until it is killed: its children are found as its descendants even before they show the mark
            signal.pause()
    theirs.close()
    with ours:
        found = next(
            wire.messages(ours), {"failed": {"given": "the process that tries the environment and the tools ended"}}
        )
    kill_tree(process, mark)
    os.waitpid(process, 0)
    if "failed" in found:
        raise ConfigError(**found["failed"])
    return found["value"]


def _stand_alone(lifeline: int, host: int) -> None:
    """In a fork: lead a process group that dies with the trainer, and die with the host."""
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != host:  # the host ended before the signal was armed
            os._exit(1)
        lifeline = os.open(f"/proc/self/fd/{lifeline}", os.O_RDONLY)  # the owner of the signal is set per opening
    die_with_parent(lifeline)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    keep_orphans()


def _serve_beside(channel: socket.socket, conduct: AgentConduct) -> None:
    """Serve as `_serve` does, but for an agent, which runs in the main thread as a program does."""

    def serve() -> None:
        try:
            _serve(channel, conduct.begin)
        finally:
            os._exit(0)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    conduct.run()
    thread.join()


def _serve(channel: socket.socket, begin: Callable[..., Conduct | AgentConduct]) -> None:
    """Answer the requests of one trajectory; `begin` makes its environment or agent from its seed."""
    conduct: Conduct | AgentConduct | None = None
    for request in wire.messages(channel):
        if conduct is None:
            os.environ[MARK] = request["mark"]
            channel.sendall(wire.encode({"pid": os.getpid()}))  # fails if nobody listens any more: then nothing begins
        try:
            if conduct is None:
                conduct = begin(seed=request["seed"])
            answer = wire.encode({"value": getattr(conduct, request["do"])(**request["with"])})
        except BaseException as error:  # also SystemExit: an environment does not end the run
            outcome = failed(error)
            answer = wire.encode({"failed": outcome.message, "traceback": outcome.traceback})
        channel.sendall(answer)


def _tell(channel: socket.socket, result: tuple[dict[str, Any], bool]) -> None:
    """Send the result of a call before the reply to the turn."""
    channel.sendall(wire.encode({"result": result}))


if __name__ == "__main__":
    main()
