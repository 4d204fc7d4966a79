"""A run's part of a Ray cluster: what it asked for is reserved, and what it starts there ends with it."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from posttrain.bundles import Bundle, amounts, bundles_of, in_words, totals
from posttrain.cluster.host import Begin, Host, begin_engine, begin_worker
from posttrain.cluster.luggage import Luggage
from posttrain.cluster.remote import RemoteChild, RemoteEngine
from posttrain.cluster.weights import PutWeights
from posttrain.config import RunConfig
from posttrain.control_groups import cores
from posttrain.errors import ConfigError, DoesNotFit

ANSWERS = 10.0
"""Seconds in which the head of a cluster has to answer."""
ROOM = 120.0
"""Seconds in which a cluster has to find room: one that grows by itself needs them."""
CALLS = 4
"""Of an actor that are under way at once: it is told, says, brings and is ended."""
SHARE = 0.5
"""Of the processor of a reward worker's bundle for one worker: rewards have one there, and the check another."""

C = TypeVar("C", bound=RemoteChild)


@contextmanager
def connect(config: RunConfig, say: Callable[[str], None], warn: Callable[[str], None]) -> Iterator[RayHosts]:
    """Reserve what a run asks for, while the context lasts.

    Raises ConfigError where there is no such cluster, DoesNotFit where it has no room.
    """
    assert config.cluster is not None
    bundles = bundles_of(config, on_gpu=uses_gpu(config))
    in_job = "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ  # which has brought the code to the nodes already
    with ExitStack() as stack:
        luggage = stack.enter_context(Luggage.of(config))
        stack.enter_context(joined(config.cluster.address, None if in_job else luggage.folder, bundles))
        group = stack.enter_context(reserved(bundles, say))
        hosts = RayHosts(group, bundles, {str(Path.cwd()): "."} if in_job else luggage.moved, warn)
        stack.callback(hosts.close)
        yield hosts


@contextmanager
def joined(address: str, folder: Path | None, bundles: Sequence[Bundle]) -> Iterator[None]:
    """A connection to the cluster; `folder` is what goes to its nodes. One that is started here has room for all."""
    if ray.is_initialized():
        raise ConfigError(
            given=f"cluster = {address} in a process that is connected to a Ray cluster already",
            allowed="a process of its own, or one that has left the cluster",
            fix="Call ray.shutdown() before training: the code of the run goes to the nodes when it connects.",
        )
    how: dict[str, Any] = {} if folder is None else {"runtime_env": {"working_dir": str(folder)}}
    if address == "local":
        how["num_cpus"] = max(cores(), round(totals(bundles)["CPU"]))
    stops = signal.getsignal(signal.SIGTERM)
    try:
        look_for(os.environ.get("RAY_ADDRESS", address) if address == "auto" else address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False, **how)
    except Exception as error:  # Ray raises nothing more special where a node does not start in time
        what = "Ray did not start on this machine" if address == "local" else "there is no such cluster"
        raise ConfigError(
            given=f"cluster = {address}, and {what} ({type(error).__name__}: {error})",
            allowed="a Ray cluster that is running, of the same versions of Python and Ray, or local",
            fix="`ray status` says whether this machine belongs to one, `ray start --head` starts one; cluster = local "
            "starts Ray for the run alone.",
        ) from error
    finally:
        with suppress(ValueError):  # not in the main thread, where Ray does not touch it
            signal.signal(signal.SIGTERM, stops)  # a run that is told to stop ends with a checkpoint
    try:
        yield
    finally:
        ray.shutdown()


def look_for(address: str) -> None:
    """Raise OSError where nobody answers at HOST:PORT: Ray would go on asking for minutes."""
    host, colon, port = address.rpartition("/")[2].rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=ANSWERS).close()


@contextmanager
def reserved(bundles: Sequence[Bundle], say: Callable[[str], None]) -> Iterator[PlacementGroup]:
    """A placement group of these, spread over nodes, so that the loss of one costs as little as possible."""
    group = placement_group([bundle.resources for bundle in bundles], strategy="SPREAD")
    try:
        if not group.wait(ROOM):
            raise DoesNotFit(
                given=f"the cluster has no room for {'; '.join(in_words(bundles))}: it has "
                f"{known(ray.cluster_resources())}, of which {known(ray.available_resources())} are free",
                allowed=f"{amounts(totals(bundles))} in all",
                fix="Lower rollout.engines, cluster.engine_cpus or cluster.reward_workers, or add nodes; `posttrain "
                "plan` prints what a run asks for.",
            )
        say(f"the cluster holds {'; '.join(in_words(bundles))}, on {nodes_of(group)} node(s)")
        yield group
    finally:
        remove_placement_group(group)


class RayHosts:
    """Starts processes in the bundles of a run. Implements `Hosts`."""

    def __init__(
        self,
        group: PlacementGroup,
        bundles: Sequence[Bundle],
        moved: Mapping[str, str],
        warn: Callable[[str], None],
    ) -> None:
        """`moved` says where folders of this machine are on a node, from its working directory."""
        self._group, self._moved, self._warn = group, moved, warn
        self._bundles = tuple(enumerate(bundles))
        self._weights: PutWeights | None = None
        self._started: list[tuple[int, RemoteChild]] = []
        """In which bundle each is."""

    @property
    def workers(self) -> int:
        """See `Hosts`."""
        return sum(bundle.holds == "reward worker" for _, bundle in self._bundles)

    def start_worker(self, output: int) -> RemoteChild:
        """See `Hosts`."""

        def lost(why: str) -> None:
            self._warn(f"a reward worker is lost: {why}; its calls are made by another")

        return self._start("reward worker", begin_worker, lambda place: RemoteChild(place, output, lost), share=SHARE)

    def start_engine(self, program: str, output: int, *, files: Sequence[int], threads: int) -> RemoteEngine:
        """See `Hosts`."""
        begin = partial(begin_engine, program=program, threads=threads)
        return self._start("engine", begin, lambda place: RemoteEngine(place, output, self._published))

    def publications(self, tensors: Mapping[str, tuple[str, Sequence[int]]]) -> PutWeights:
        """See `Hosts`."""
        self._weights = PutWeights(tensors)
        return self._weights

    def _start(self, holds: str, begin: Begin, child: Callable[[Callable[[], Any]], C], share: float = 1.0) -> C:
        """Start a process in the bundle of its kind that has the fewest, in an actor that takes this share of it.

        Whatever a run starts on a cluster is started here: `begin` is called on the node, and starts the process.
        """
        self._started = [(place, one) for place, one in self._started if one.lives]
        used = Counter(place for place, one in self._started if one.wanted)
        place, bundle = min((one for one in self._bundles if one[1].holds == holds), key=lambda one: used[one[0]])
        started = child(partial(self._actor, place, bundle, begin, share))
        self._started.append((place, started))
        return started

    def _actor(self, place: int, bundle: Bundle, begin: Begin, share: float) -> Any:
        """Ray never restarts it: its process would have nothing of what it had been told."""
        made = ray.remote(Host).options(
            num_cpus=bundle.cpus * share,
            num_gpus=bundle.gpus,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=CALLS,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=place),
        )
        return made.remote(begin, self._moved)

    def close(self) -> None:
        """Wait until all that was started has ended."""
        for _, child in self._started:
            child.kill()
        for _, child in self._started:
            child.join()

    def _published(self) -> PutWeights:
        assert self._weights is not None, "an engine loads what was published"
        return self._weights


def nodes_of(group: PlacementGroup) -> int:
    """On how many nodes its bundles are."""
    from ray.util.placement_group import placement_group_table

    return len(set(placement_group_table(group)["bundles_to_node_id"].values()))


def known(resources: Mapping[str, float]) -> str:
    """Processors and GPUs of a cluster, in words."""
    return amounts({name: resources[name] for name in ("CPU", "GPU") if name in resources})


def uses_gpu(config: RunConfig) -> bool:
    """Does the trainer compute on a GPU?"""
    import torch

    return config.model.device != "cpu" and torch.cuda.is_available()
