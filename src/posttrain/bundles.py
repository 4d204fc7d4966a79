"""The resources that a run requests from a cluster: one bundle for each process, each bundle on a single machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from posttrain.config import RunConfig


RANK = "trainer rank"
"""A process that holds a part of the trained model."""


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """The resources of one process."""

    holds: str
    """`trainer rank`, `engine` or `reward worker`."""
    cpus: int
    gpus: int = 0

    @property
    def resources(self) -> dict[str, float]:
        """The amounts, under the names that Ray uses."""
        return {"CPU": float(self.cpus), **({"GPU": float(self.gpus)} if self.gpus else {})}


def bundles_of(config: RunConfig, *, on_gpu: bool, ranks: int = 0) -> tuple[Bundle, ...]:
    """The bundles of a run on a cluster: for the ranks of its trainer, its engines and its reward workers. With 0
    ranks, the trainer runs on the machine of the command and needs no bundle.

    `on_gpu`: the trainer computes on a GPU; the engines then need GPUs, too.
    """
    cluster = config.cluster
    if cluster is None:
        return ()
    trainer = [Bundle(holds=RANK, cpus=cluster.rank_cpus, gpus=int(on_gpu))] * ranks
    engines = [Bundle(holds="engine", cpus=cluster.engine_cpus, gpus=int(on_gpu))] * config.rollout.engines
    workers = [Bundle(holds="reward worker", cpus=1)] * (cluster.reward_workers if _needs_workers(config) else 0)
    return (*trainer, *engines, *workers)


def ranks_of(config: RunConfig) -> int:
    """The number of trainer ranks that run on the cluster; 0 if the trainer is one process, where the command runs."""
    devices = config.train.devices
    return devices if isinstance(devices, int) and devices > 1 else 0


def needs_cluster(config: RunConfig) -> bool:
    """Whether a run has engines or ranks that need a cluster."""
    return bool(config.rollout.engines or ranks_of(config))


def _needs_workers(config: RunConfig) -> bool:
    """Whether a reward or check is a function. Reward models and judges score in the trainer's process."""
    return any(entry.model is None and entry.judge is None for entry in (*config.rewards, *config.check))


def by_node(nodes: Sequence[str]) -> list[int]:
    """The order in which ranks take the bundles: indices into `nodes`, which names the node of each bundle. Bundles on
    one node follow each other.

    >>> by_node(["a", "b", "a", "a"])
    [0, 2, 3, 1]
    """
    return sorted(range(len(nodes)), key=lambda bundle: (nodes.index(nodes[bundle]), bundle))


def totals(bundles: Sequence[Bundle]) -> dict[str, float]:
    """The sum of the resources of all bundles.

    >>> totals([Bundle(holds="engine", cpus=4, gpus=1)] * 2)
    {'CPU': 8.0, 'GPU': 2.0}
    """
    found = dict[str, float]()
    for bundle in bundles:
        for name, amount in bundle.resources.items():
            found[name] = found.get(name, 0.0) + amount
    return found


def in_words(bundles: Sequence[Bundle]) -> list[str]:
    """One line of text for each kind of bundle.

    >>> in_words([Bundle(holds="engine", cpus=4, gpus=1)] * 2 + [Bundle(holds="reward worker", cpus=1)])
    ['2 x engine: 4 CPUs, 1 GPU', '1 x reward worker: 1 CPU']
    """
    return [f"{list(bundles).count(one)} x {one.holds}: {amounts(one.resources)}" for one in dict.fromkeys(bundles)]


def amounts(resources: Mapping[str, float]) -> str:
    """The resources in words.

    >>> amounts({"CPU": 4.0, "GPU": 1.0})
    '4 CPUs, 1 GPU'
    """
    return ", ".join(f"{amount:g} {name}{'s' * (amount != 1)}" for name, amount in resources.items()) or "nothing"
