"""A Ray cluster of three nodes on this machine, and tools for the tests to find its processes."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from tempfile import TemporaryDirectory
from typing import Any

import psutil

CPUS = 2
"""Number of processors of each node."""
MEMORY = 10**8
"""Bytes of the object store of each node."""


@contextmanager
def three_nodes(head_cpus: int = CPUS, cpus: int = CPUS) -> Iterator[Any]:
    """Three nodes on this machine; `.address` is the head's, `.webui_url` that of its dashboard, which takes jobs."""
    from ray.cluster_utils import Cluster

    head = {
        "num_cpus": head_cpus,
        "object_store_memory": MEMORY,
        "include_dashboard": True,
        "dashboard_port": free_port(),
    }
    cluster = Cluster(initialize_head=True, head_node_args=head)
    with ExitStack() as stack:
        stack.callback(cluster.shutdown)
        for _ in range(2):  # as on separate machines, each unpacks the job's files into its own folder
            folder = stack.enter_context(TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True))
            cluster.add_node(num_cpus=cpus, object_store_memory=MEMORY, temp_dir=folder)
        yield cluster


def free_port() -> int:
    """A port that no process listens to at present."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def running(program: str) -> list[psutil.Process]:
    """Processes of this module that an actor holds, oldest first."""
    found = []
    for process in psutil.process_iter(["cmdline", "create_time"]):
        with suppress(psutil.Error):
            if program in (process.info["cmdline"] or ()) and "ray::" in (process.parent() or process).cmdline()[0]:
                found.append(process)
    return sorted(found, key=lambda one: one.info["create_time"])


def lives(process: psutil.Process) -> bool:
    """Whether the process has not ended, whatever its parent is now."""
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def actor_of(process: psutil.Process) -> psutil.Process:
    """The actor that holds a process."""
    parent = process.parent()
    assert parent is not None
    return parent


def node_of(cluster: Any, process: psutil.Process) -> Any:
    """The node whose raylet has started the actor of a process; None if it is the head."""
    above = {one.pid for one in process.parents()}
    for node in cluster.worker_nodes:
        started = [one.process.pid for kind in node.all_processes.values() for one in kind]
        if above & set(started):
            return node
    return None


def wait_for(what: str, there: Callable[[], Any], seconds: float = 120.0) -> Any:
    """The first true value of `there`."""
    until = time.monotonic() + seconds
    while not (found := there()):
        assert time.monotonic() < until, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.02)
    return found
