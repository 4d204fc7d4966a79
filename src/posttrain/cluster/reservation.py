"""A run's part of a Ray cluster: reserved resources, and processes that end with the run."""

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
"""Seconds within which the head of a cluster must answer."""
ROOM = 120.0
"""Seconds within which a cluster must find room. A cluster that scales automatically needs them."""
CALLS = 4
"""Number of concurrent calls of an actor: `hear`, `said`, `bring` and `finish`."""
TOLD = "POSTTRAIN_RESERVATION"
"""Environment variable that describes the reservation of a job to its first rank."""


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A placement group for another process to join: the first rank of a job, which starts engines and workers."""

    address: str
    name: str
    """The name of the group, and of the namespace that holds the name."""
    code: str
    """The place where the cluster keeps the files that are sent to the nodes."""
    bundles: Sequence[Bundle]
    moved: Mapping[str, str]

    def told(self) -> dict[str, str]:
        """The environment variable for that process."""
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
    """Folders of this machine -> their paths on a node, relative to its working directory."""

    def actor(self, place: int, begin: Begin, share: float = 1.0) -> Any:
        """Start an actor in the bundle number `place`, with this share of its processors.

        `begin` runs on the node and starts the process. All actors of a run are started here. Ray never restarts them,
        because a new process would lack everything that the old one was told.
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
        """The scheduling strategy for the bundle with this number."""
        return PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=place)

    def describe(self) -> str:
        """A sentence about the held bundles and the number of their nodes."""
        nodes = set(placement_group_table(self.group)["bundles_to_node_id"].values())
        return f"the cluster holds {'; '.join(in_words(self.bundles))}, on {len(nodes)} node(s)"


@contextmanager
def packed(config: RunConfig, *, files: bool = False) -> Iterator[tuple[str | None, Mapping[str, str]]]:
    """The folder to send to the nodes, and the paths of this machine's folders in it.

    The folder is None inside a Ray job, which has brought the files along. `files`: also send the files that the config
    names."""
    if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:
        yield None, {str(Path.cwd()): "."}
        return
    with Luggage.of(config, files=files) as luggage:
        yield str(luggage.folder), luggage.moved


@contextmanager
def joined(address: str, code: str | None, cpus: float = 0, namespace: str | None = None) -> Iterator[None]:
    """A connection to the cluster. `code` is the folder to send to its nodes. `cpus` is for a cluster started here.

    Raises ConfigError if there is no such cluster.
    """
    if ray.is_initialized():
        raise ConfigError(
            given=f"cluster = {address} in a process that is already connected to a Ray cluster",
            allowed="a process of its own, or one that has left the cluster",
            fix="Call ray.shutdown() before training, because the code of the run is sent when it connects.",
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
    except Exception as error:  # Ray raises a plain Exception if a node does not start in time
        what = "Ray did not start on this machine" if address == "local" else "there is no such cluster"
        raise ConfigError(
            given=f"cluster = {address}, and {what} ({type(error).__name__}: {error})",
            allowed="a running Ray cluster with the same versions of Python and Ray, or local",
            fix="`ray status` says whether this machine belongs to a cluster; `ray start --head` starts one; "
            "cluster = local starts Ray for this run only.",
        ) from error
    finally:
        with suppress(ValueError):  # outside the main thread, where Ray does not change the handler
            signal.signal(signal.SIGTERM, stops)  # so that SIGTERM ends the run with a checkpoint
    try:
        yield
    finally:
        ray.shutdown()


def look_for(address: str) -> None:
    """Raise OSError if nothing answers at HOST:PORT, because Ray would keep trying for minutes."""
    host, colon, port = address.rpartition("/")[2].rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=ANSWERS).close()


@contextmanager
def reserved(bundles: Sequence[Bundle], moved: Mapping[str, str], strategy: str, name: str = "") -> Iterator[Held]:
    """A placement group of these bundles, spread over nodes by `strategy`. Raises DoesNotFit if they have no room."""
    group = placement_group([bundle.resources for bundle in bundles], strategy=strategy, name=name)
    try:
        if not group.wait(ROOM):
            raise DoesNotFit(
                given=f"the cluster has no room for {'; '.join(in_words(bundles))}: it has "
                f"{known(ray.cluster_resources())}, and {known(ray.available_resources())} are free",
                allowed=f"{amounts(totals(bundles))} in total",
                fix="Lower rollout.engines, train.devices, or the resources in cluster, or add nodes. `posttrain plan` "
                "prints the resources that a run needs.",
            )
        yield Held(group, bundles, moved)
    finally:
        remove_placement_group(group)


def known(resources: Mapping[str, float]) -> str:
    """Processors and GPUs of a cluster, in words."""
    return amounts({name: resources[name] for name in ("CPU", "GPU") if name in resources})
