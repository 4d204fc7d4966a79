"""Reward workers and hosts of environments that start fast: each is forked from a process that has imported what such
processes import.

A new interpreter takes 0.1 s to import the modules of a worker, 0.2 s for those of a host, and 1 s if it describes
tools. The process that forks has imported neither torch nor sympy, so it is small, and a fork of it takes milliseconds.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from inspect import signature
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, ClassVar
from unittest import mock

from tests.processes import Descriptor, Forked

from posttrain.child import LocalChild
from posttrain.descendants import MARK, kill_tree, new_mark
from posttrain.episodes import sessions
from posttrain.rewards.pool import WorkerPool
from posttrain.rewards.reward_set import build_rewards

if TYPE_CHECKING:
    import pytest

_STARTING = threading.Lock()


def fork_workers(patch: pytest.MonkeyPatch) -> None:
    """Fork reward workers while `patch` is in force."""
    patch.setitem(build_rewards.__kwdefaults__, "start", ForkedWorker)
    names = list(signature(WorkerPool).parameters)
    assert names == ["size", "start"], "both have defaults, in this order"
    patch.setattr(WorkerPool.__init__, "__defaults__", (None, ForkedWorker))


def fork_hosts(patch: pytest.MonkeyPatch) -> None:
    """Fork hosts while `patch` is in force."""
    patch.setattr(sessions, "LocalChild", ForkedHost)


class ForkedChild(Forked, LocalChild):
    """A child that is forked instead of importing everything again. It otherwise equals `LocalChild`, but its parent is
    the process that it is forked from.

    Only a child that still runs is searched for processes that it left behind.
    `/proc` shows the environment of the process that it is forked from, so tests that find processes by their
    environment need the child of a run.
    """

    module: ClassVar[str]
    """The module that the child runs, as in `python -m MODULE FD`."""
    imported: ClassVar[tuple[str, ...]]
    """Modules that the process to fork from has imported."""

    def __init__(
        self,
        arguments: Sequence[str],
        output: int,
        *,
        files: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        assert list(arguments) == ["-m", self.module]
        assert not files
        self.channel, theirs = socket.socketpair()
        lifeline, self._alive = multiprocessing.Pipe(duplex=False)
        self._mark = new_mark()
        given = {**os.environ, "PYTHONPATH": _path(), **(environment or {}), MARK: self._mark}
        ends = (lifeline, theirs, Descriptor(output))
        with theirs, lifeline, _STARTING, mock.patch.object(forkserver, "connect_to_new_process", server(type(self))):
            context = multiprocessing.get_context("forkserver")
            self._forked = context.Process(
                target=_be, args=(self.module, given, os.getcwd(), sys.path, *ends), daemon=True
            )
            self._forked.start()
        self.channel.setblocking(False)

    def kill(self) -> None:
        if self.end() is None:
            kill_tree(self.pid, self._mark)
        self._forked.join()
        self.channel.close()
        self._alive.close()


class ForkedHost(ForkedChild):
    """A host of environments."""

    module = "posttrain.episodes.host"
    imported = (module, "numpy", "transformers.utils.chat_template_utils")


class ForkedWorker(ForkedChild):
    """A worker that computes rewards; see `LocalWorker`."""

    module = "posttrain.rewards.worker"
    imported = (module, "posttrain.rewards.verifiers")

    def __init__(self, output: int) -> None:
        order = os.environ.get("PYTHONHASHSEED", "0")
        super().__init__(["-m", self.module], output, environment={"PYTHONHASHSEED": order})


def _path() -> str:
    """Return this process's `sys.path` for a process with another working directory."""
    return os.pathsep.join(map(os.path.abspath, sys.path))


@cache
def server(kind: type[ForkedChild]) -> object:
    """Start the process to fork from, whose sets have the order that children have in a run. Return what forks it.

    A test may have changed to another folder, so the process gets our path. It would silently skip modules that it
    cannot import, and each fork would import them.
    """
    own = forkserver.ForkServer()
    own.set_forkserver_preload([*kind.imported, __name__])
    with mock.patch.dict(os.environ, PYTHONHASHSEED=os.environ.get("PYTHONHASHSEED", "0"), PYTHONPATH=_path()):
        own.ensure_running()
    return own.connect_to_new_process


def _be(
    module: str,
    environment: Mapping[str, str],
    folder: str,
    path: Sequence[str],
    lifeline: Connection,
    channel: socket.socket,
    output: int,
) -> None:
    """Be `python -m MODULE FD` in this folder, from which it imports first. It ends with its standard input."""
    child = importlib.import_module(module)
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:] = [folder, *path]
    for end, standard in ((lifeline.fileno(), 0), (output, 1), (output, 2)):
        os.dup2(end, standard)
    lifeline.close()
    os.close(output)
    sys.argv = [str(child.__file__), str(channel.detach())]
    child.main()
