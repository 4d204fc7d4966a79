"""Reward workers that start fast: each is forked from a process that has imported what workers import.

A new interpreter takes 0.1 s to import the modules of a worker, and another 0.1 s for a built-in reward. The process
that forks has imported neither torch nor sympy, as a worker in a run.
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

from tests.processes import _Descriptor

from posttrain.child import LocalChild, work_of
from posttrain.descendants import MARK, kill_tree, new_mark
from posttrain.rewards.pool import WorkerPool
from posttrain.rewards.reward_set import build_rewards

if TYPE_CHECKING:
    import pytest

IMPORTED = ["posttrain.rewards.worker", "posttrain.rewards.verifiers", __name__]
_STARTING = threading.Lock()


def fork_workers(patch: pytest.MonkeyPatch) -> None:
    """Fork workers while `patch` is in force."""
    server()
    patch.setitem(build_rewards.__kwdefaults__, "start", ForkedWorker)
    patch.setattr(WorkerPool.__init__, "__defaults__", (None, ForkedWorker))


class ForkedWorker(LocalChild):
    """A worker that is forked instead of importing everything again. It otherwise equals `LocalWorker`, but its parent
    is the process that it is forked from."""

    def __init__(self, output: int) -> None:
        self.channel, theirs = socket.socketpair()
        lifeline, self._alive = multiprocessing.Pipe(duplex=False)
        self._mark = new_mark()
        path = os.pathsep.join(os.path.abspath(place) for place in sys.path)
        given = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")}
        ends = (lifeline, theirs, _Descriptor(output))
        with theirs, lifeline, _STARTING, mock.patch.object(forkserver, "connect_to_new_process", server()):
            context = multiprocessing.get_context("forkserver")
            self._forked = context.Process(
                target=_worker, args=({**given, MARK: self._mark}, sys.path, *ends), daemon=True
            )
            self._forked.start()
        self.channel.setblocking(False)

    @property
    def pid(self) -> int:
        assert self._forked.pid is not None
        return self._forked.pid

    def end(self, patience: float = 0.0) -> int | None:
        self._forked.join(patience)
        return self._forked.exitcode

    def signal(self, number: int) -> None:
        if self.end() is None:
            os.kill(self.pid, number)

    def work(self) -> float:
        return work_of(self.pid)

    def kill(self) -> None:
        kill_tree(self.pid, self._mark)
        self._forked.join()
        self.channel.close()
        self._alive.close()


@cache
def server() -> object:
    """Start the process to fork from, whose sets have the order that workers have in a run. Return what forks it."""
    own = forkserver.ForkServer()
    own.set_forkserver_preload(IMPORTED)
    with mock.patch.dict(os.environ, PYTHONHASHSEED=os.environ.get("PYTHONHASHSEED", "0")):
        own.ensure_running()
    return own.connect_to_new_process


def _worker(
    environment: Mapping[str, str], path: Sequence[str], lifeline: Connection, channel: socket.socket, output: int
) -> None:
    """Be the worker `python -m posttrain.rewards.worker FD`, which ends with its standard input."""
    from posttrain.rewards import worker

    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path
    for end, standard in ((lifeline.fileno(), 0), (output, 1), (output, 2)):
        os.dup2(end, standard)
    lifeline.close()
    os.close(output)
    sys.argv = [worker.__file__, str(channel.detach())]
    worker.main()
