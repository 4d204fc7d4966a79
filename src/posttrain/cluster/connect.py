"""Machines of a Ray cluster for the engines and reward workers that the trainer of a run starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import ray

from posttrain.bundles import bundles_of, totals
from posttrain.cluster.host import Begin, begin_engine, begin_worker
from posttrain.cluster.remote import RemoteChild, RemoteEngine
from posttrain.cluster.reservation import Held, Reservation, joined, packed, reserved
from posttrain.cluster.weights import PutWeights
from posttrain.config import RunConfig
from posttrain.errors import ConfigError
from posttrain.ranks.environment import place_of_process

SHARE = 0.5
"""A worker's share of the processors in a reward worker's bundle: half is for rewards, half for the check."""

C = TypeVar("C", bound=RemoteChild)


@contextmanager
def connect(config: RunConfig, say: Callable[[str], None], warn: Callable[[str], None]) -> Iterator[RayHosts]:
    """The machines that a run may use while the context lasts, from the reservation of its job or from its own.

    Raises ConfigError if there is no such cluster, and DoesNotFit if it has no room.
    """
    told = Reservation.of_process()
    if told is None and place_of_process() is not None:
        raise ConfigError(
            given="cluster in a job whose ranks were started by torchrun or srun",
            allowed="ranks that this library starts on the nodes, or engines on the machine of the first rank",
            fix="Start one process with train.devices = N, or leave cluster out.",
        )
    with _reserve(config) if told is None else _join(told) as held:
        say(held.describe())
        hosts = RayHosts(held, warn)
        try:
            yield hosts
        finally:
            hosts.close()


@contextmanager
def _reserve(config: RunConfig) -> Iterator[Held]:
    """Reserve bundles for a run, spread over nodes so that the loss of a node costs as little as possible."""
    assert config.cluster is not None
    bundles = bundles_of(config, on_gpu=uses_gpu(config))
    with (
        packed(config) as (code, moved),
        joined(config.cluster.address, code, totals(bundles)["CPU"]),
        reserved(bundles, moved, "SPREAD") as held,
    ):
        yield held


@contextmanager
def _join(told: Reservation) -> Iterator[Held]:
    """Join the reservation of this process's job. It runs on a node, where the sent files are its working directory."""
    with joined(told.address, told.code, namespace=told.name):
        group = ray.util.get_placement_group(told.name)
        yield Held(group, told.bundles, {**told.moved, str(Path.cwd()): "."})


class RayHosts:
    """Starts processes in the bundles of a run. Implements `Hosts`."""

    def __init__(self, held: Held, warn: Callable[[str], None]) -> None:
        self._held, self._warn = held, warn
        self._bundles = tuple(enumerate(held.bundles))
        self._weights: PutWeights | None = None
        self._started: list[tuple[int, RemoteChild]] = []
        """The started processes, each with the number of its bundle."""

    @property
    def workers(self) -> int:
        """See `Hosts`."""
        return sum(bundle.holds == "reward worker" for _, bundle in self._bundles)

    def start_worker(self, output: int) -> RemoteChild:
        """See `Hosts`."""

        def lost(why: str) -> None:
            self._warn(f"a reward worker is lost: {why}; another one repeats its calls")

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
        """Start a process in the bundle of its kind that has the fewest processes. Its actor takes this share of it."""
        self._started = [(place, one) for place, one in self._started if one.lives]
        used = Counter(place for place, one in self._started if one.wanted)
        place, _ = min((one for one in self._bundles if one[1].holds == holds), key=lambda one: used[one[0]])
        started = child(partial(self._held.actor, place, begin, share))
        self._started.append((place, started))
        return started

    def close(self) -> None:
        """End all started processes, and wait until they have ended."""
        for _, child in self._started:
            child.kill()
        for _, child in self._started:
            child.join()

    def _published(self) -> PutWeights:
        assert self._weights is not None, "an engine loads weights only after a publication"
        return self._weights


def uses_gpu(config: RunConfig) -> bool:
    """Does the trainer compute on a GPU?"""
    import torch

    return config.model.device != "cpu" and torch.cuda.is_available()
