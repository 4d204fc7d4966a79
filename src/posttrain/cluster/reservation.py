"""A run's part of a Ray cluster: what it asks for is reserved, and what it starts there ends with it."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from posttrain.bundles import Bundle, amounts, in_words, totals
from posttrain.cluster.host import Begin, Host
from posttrain.cluster.luggage import Luggage
from posttrain.config import RunConfig
from posttrain.control_groups import cores
from posttrain.errors import ConfigError, DoesNotFit

ANSWERS = 10.0
"""Seconds in which the head of a cluster has to answer."""
ROOM = 120.0
"""Seconds in which a cluster has to find room: one that grows by itself needs them."""
CALLS = 4
"""Calls of an actor that may be in progress at once: it is told, says, brings and is ended."""
TOLD = "POSTTRAIN_RESERVATION"
"""The variable of the environment that tells the first rank of a job what has been reserved for it."""


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A placement group, as another process joins it: the first rank of a job starts engines and reward workers."""

    address: str
    name: str
    """The name of the group, and of the namespace that holds the name."""
    code: str
    """Where the cluster keeps what goes to the nodes."""
    bundles: Sequence[Bundle]
    moved: Mapping[str, str]

    def told(self) -> dict[str, str]:
        """For the environment of that process."""
        return {TOLD: json.dumps(asdict(self))}

    @staticmethod
    def of_process(environment: Mapping[str, str] = os.environ) -> Reservation | None:
        """The reservation that this process was given; None if it makes its own."""
        if TOLD not in environment:
            return None
        told = json.loads(environment[TOLD])
        return Reservation(**{**told, "bundles": [Bundle(**bundle) for bundle in told["bundles"]]})


@dataclass(frozen=True)
class Held:
    """Bundles in which a run starts processes."""

    group: PlacementGroup
    bundles: Sequence[Bundle]
    moved: Mapping[str, str]
    """Where folders of this machine are on a node, from its working directory."""

    def actor(self, place: int, begin: Begin, share: float = 1.0) -> Any:
        """One in the bundle with this number, of which it takes this share. `begin` is called on the node, and starts
        the process.

        Whatever a run starts on a cluster is started here. Ray never restarts it: its process would have nothing of
        what it had been told.
        """
        bundle = self.bundles[place]
        made = ray.remote(Host).options(
            num_cpus=bundle.cpus * share,
            num_gpus=bundle.gpus,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=CALLS,
            scheduling_strategy=self.at(place),
        )
        return made.remote(begin, self.moved)

    def at(self, place: int) -> PlacementGroupSchedulingStrategy:
        """In the bundle with this number."""
        return PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=place)

    def describe(self) -> str:
        """What is held, and on how many nodes."""
        nodes = set(placement_group_table(self.group)["bundles_to_node_id"].values())
        return f"the cluster holds {'; '.join(in_words(self.bundles))}, on {len(nodes)} node(s)"


@contextmanager
def packed(config: RunConfig, *, files: bool = False) -> Iterator[tuple[str | None, Mapping[str, str]]]:
    """The folder that goes to the nodes, and where folders of this machine are in it; None: a job of the cluster has
    brought it along. `files`: those that the config names go along, too."""
    if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:
        yield None, {str(Path.cwd()): "."}
        return
    with Luggage.of(config, files=files) as luggage:
        yield str(luggage.folder), luggage.moved


@contextmanager
def joined(address: str, code: str | None, cpus: float = 0, namespace: str | None = None) -> Iterator[None]:
    """A connection to the cluster; `code` is what goes to its nodes. One that is started here has so many processors.

    Raises ConfigError where there is no such cluster.
    """
    if ray.is_initialized():
        raise ConfigError(
            given=f"cluster = {address} in a process that is already connected to a Ray cluster",
            allowed="a process of its own, or one that has left the cluster",
            fix="Call ray.shutdown() before training: the code of the run goes to the nodes when it connects.",
        )
    how: dict[str, Any] = {} if code is None else {"runtime_env": {"working_dir": code}}
    if address == "local":
        how["num_cpus"] = max(cores(), round(cpus))
    stops = signal.getsignal(signal.SIGTERM)
    try:
        look_for(os.environ.get("RAY_ADDRESS", address) if address == "auto" else address)
        ray.init(
            address=address,
            namespace=namespace,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
            **how,
        )
    except Exception as error:  # Ray raises nothing more special where a node does not start in time
        what = "Ray did not start on this machine" if address == "local" else "there is no such cluster"
        raise ConfigError(
            given=f"cluster = {address}, and {what} ({type(error).__name__}: {error})",
            allowed="a running Ray cluster with the same versions of Python and Ray, or local",
            fix="`ray status` says whether this machine belongs to a cluster; `ray start --head` starts one; "
            "cluster = local starts Ray for this run only.",
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
def reserved(bundles: Sequence[Bundle], moved: Mapping[str, str], strategy: str, name: str = "") -> Iterator[Held]:
    """A placement group of these, spread over nodes by `strategy`. Raises DoesNotFit where they have no room."""
    group = placement_group([bundle.resources for bundle in bundles], strategy=strategy, name=name)
    try:
        if not group.wait(ROOM):
            raise DoesNotFit(
                given=f"the cluster has no room for {'; '.join(in_words(bundles))}: it has "
                f"{known(ray.cluster_resources())}, of which {known(ray.available_resources())} are free",
                allowed=f"{amounts(totals(bundles))} in all",
                fix="Lower rollout.engines, train.devices, or what cluster asks for, or add nodes; `posttrain plan` "
                "prints what a run asks for.",
            )
        yield Held(group, bundles, moved)
    finally:
        remove_placement_group(group)


def known(resources: Mapping[str, float]) -> str:
    """Processors and GPUs of a cluster, in words."""
    return amounts({name: resources[name] for name in ("CPU", "GPU") if name in resources})
