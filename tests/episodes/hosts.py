"""Hosts of environments that start fast: each is forked from a process that has imported what a host imports.

A new interpreter takes 0.2 s to import the modules of a host, and 1 s if it describes tools. The process that forks has
not imported torch, so it is small, and a fork of it takes milliseconds, as in a run.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING
from unittest import mock

from posttrain.child import LocalChild
from posttrain.descendants import MARK, kill_tree, new_mark
from posttrain.episodes import sessions

if TYPE_CHECKING:
    import pytest

IMPORTED = ["posttrain.episodes.host", "numpy", "transformers.utils.chat_template_utils", __name__]
_STARTING = threading.Lock()


def fork_hosts(patch: pytest.MonkeyPatch) -> None:
    """Fork hosts while `patch` is in force."""
    patch.setattr(sessions, "LocalChild", ForkedHost)


class ForkedHost(LocalChild):
    """A host that is forked instead of importing everything again.

    Only a host that still runs is searched for processes that it left behind.
    `/proc` shows the environment of the process that it is forked from, so tests that find processes by their
    environment need the host of a run.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        output: int,
        *,
        files: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        assert list(arguments) == ["-m", "posttrain.episodes.host"]
        assert not files
        self.channel, theirs = socket.socketpair()
        lifeline, self._alive = multiprocessing.Pipe(duplex=False)
        self._mark = new_mark()
        path = os.pathsep.join(os.path.abspath(place) for place in sys.path)
        given = {**os.environ, "PYTHONPATH": path, **(environment or {}), MARK: self._mark}
        with theirs, lifeline, _STARTING, mock.patch.object(forkserver, "connect_to_new_process", _server()):
            context = multiprocessing.get_context("forkserver")
            self._forked = context.Process(target=_host, args=(given, sys.path, lifeline, theirs), daemon=True)
            self._forked.start()
        self.channel.setblocking(False)

    def end(self, patience: float = 0.0) -> int | None:
        self._forked.join(patience)
        return self._forked.exitcode

    def kill(self) -> None:
        assert self._forked.pid is not None
        if self.end() is None:
            kill_tree(self._forked.pid, self._mark)
        self._forked.join()
        self.channel.close()
        self._alive.close()


@cache
def _server() -> object:
    """Start the process to fork from, whose sets have the order that hosts have in a run. Return what forks it."""
    own = forkserver.ForkServer()
    own.set_forkserver_preload(IMPORTED)
    with mock.patch.dict(os.environ, PYTHONHASHSEED=os.environ.get("PYTHONHASHSEED", "0")):
        own.ensure_running()
    return own.connect_to_new_process


def _host(environment: Mapping[str, str], path: Sequence[str], lifeline: Connection, channel: socket.socket) -> None:
    """Be the host `python -m posttrain.episodes.host FD`, which ends with its standard input."""
    from posttrain.episodes import host

    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path
    os.dup2(lifeline.fileno(), 0)
    lifeline.close()
    sys.argv = [host.__file__, str(channel.detach())]
    host.main()
