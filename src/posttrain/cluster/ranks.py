"""The ranks of a job on the nodes of a Ray cluster. Each rank is the same process as on one machine.

    this process     reserves one placement group for ranks, engines and reward workers; watches the ranks (launch.py)
    rank 0           starts engines and reward workers in the same group; they end with it
    rank 1 …         follow

Ray decides on which nodes the bundles are. Ranks on one node have consecutive numbers. All ranks meet at the address of
the first rank's node. The group lasts through all restarts of the job. A bundle whose node is lost moves to another
node.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import ray

from posttrain.bundles import RANK, amounts, bundles_of, by_node, totals
from posttrain.cluster import reservation
from posttrain.cluster.host import begin_rank
from posttrain.cluster.luggage import refuse_folders
from posttrain.cluster.remote import RemoteRank
from posttrain.cluster.reservation import Held, Reservation, joined, known, packed, reserved
from posttrain.cluster.whereabouts import Site, look_around
from posttrain.config import RunConfig
from posttrain.errors import ConfigError, DoesNotFit
from posttrain.ranks.environment import Place, told_to

T = TypeVar("T")
STDOUT = 1


@contextmanager
def reserve_ranks(config: RunConfig, size: int, output: int | None) -> Iterator[RayRanks]:
    """See `Cluster`."""
    assert config.cluster is not None
    refuse_folders(config)
    cpus = totals(bundles_of(config, on_gpu=False, ranks=size))["CPU"]
    name = f"posttrain-{secrets.token_hex(8)}"
    with (
        packed(config, files=True) as (code, moved),
        joined(config.cluster.address, code, cpus, namespace=name),
        reserved(bundles_of(config, on_gpu=_have_gpus(config), ranks=size), moved, "PACK", name) as held,
    ):
        yield RayRanks(held, name, STDOUT if output is None else output)


def _have_gpus(config: RunConfig) -> bool:
    """Do the ranks compute on GPUs? This machine need not have one."""
    return config.model.device != "cpu" and ray.cluster_resources().get("GPU", 0) > 0


class RayRanks:
    """Starts ranks in the first bundles of a reservation. Implements `RankHosts`."""

    def __init__(self, held: Held, name: str, output: int) -> None:
        """`name` is the name of the reservation. Ranks print to the descriptor `output`."""
        self._held, self._name, self._output = held, name, output
        self._bundles = [place for place, one in enumerate(held.bundles) if one.holds == RANK]
        """Numbers of the ranks' bundles among all bundles of the reservation."""
        self._least = 1 if len(self._bundles) < len(held.bundles) else 2
        """Least ranks that need the cluster: a single rank needs none unless it has engines there."""
        self._sites = dict[int, Site]()
        """The last known node of each bundle that has one."""

    def room(self, size: int) -> int:
        """See `RankHosts`. A bundle whose node was lost moves to another node if one has room."""
        self._sites = self._ask(look_around, self._bundles, size)
        if len(self._sites) < min(size, self._least):
            raise DoesNotFit(
                given=f"the cluster has room for {len(self._sites)} of {size} ranks: it has "
                f"{known(ray.cluster_resources())}",
                allowed=f"{size} ranks: {amounts(self._held.bundles[0].resources)} each",
                fix="Add nodes, then `posttrain resume RUN`.",
            )
        return len(self._sites)

    @contextmanager
    def start(self, file: Path, size: int) -> Iterator[Sequence[RemoteRank]]:
        """See `RankHosts`. Raises ConfigError if a node cannot see the folder of the run."""
        places = [list(self._sites)[one] for one in by_node([site.node for site in self._sites.values()])][:size]
        self._require_storage(file, places)
        ranks = list[RemoteRank]()
        try:
            for place, environment in zip(places, self._told([self._sites[one] for one in places]), strict=True):
                begin = partial(begin_rank, file=str(file), environment=environment)
                ranks.append(RemoteRank(partial(self._held.actor, place, begin), self._output))
            yield ranks
        finally:
            for rank in ranks:
                rank.kill()
            for rank in ranks:
                rank.join()

    def _require_storage(self, file: Path, places: Sequence[int]) -> None:
        seen = self._ask(os.path.exists, places, len(places), str(file))
        if blind := [self._sites[place].address for place in places if not seen.get(place)]:
            raise ConfigError(
                given=f"output = {file.parents[2]}, which the node {blind[0]} cannot see",
                allowed="a folder on storage that this machine and all nodes see",
                fix="Set output to such a folder, and start the run on a machine that sees it (`posttrain submit`).",
            )

    def _told(self, sites: Sequence[Site]) -> Iterator[dict[str, str]]:
        """Environment variables of each rank. The first rank's also describe the reservation."""
        first, threads = sites[0], str(self._held.bundles[0].cpus)
        on_each = set(Counter(site.node for site in sites).values())
        beside = on_each.pop() if len(on_each) == 1 else None  # only if all nodes have the same number
        for rank, site in enumerate(sites):
            local = sum(before.node == site.node for before in sites[:rank])
            place = Place(rank=rank, size=len(sites), local=local, beside=beside)
            met = told_to(place, first.address, first.port)
            yield {**met, "OMP_NUM_THREADS": threads, **({} if rank else self._reservation(first))}

    def _reservation(self, site: Site) -> dict[str, str]:
        held = self._held
        told = Reservation(address=site.head, name=self._name, code=site.code, bundles=held.bundles, moved=held.moved)
        return told.told()

    def _ask(self, what: Callable[..., T], places: Sequence[int], enough: int, *args: str) -> dict[int, T]:
        """Answers from the nodes of these bundles, as soon as there are `enough`; after a while, also fewer."""
        task = ray.remote(what)
        asked = {
            task.options(num_cpus=0, max_retries=-1, scheduling_strategy=self._held.at(place)).remote(*args): place
            for place in places
        }
        found, missing = ray.wait(list(asked), num_returns=min(enough, len(asked)), timeout=reservation.ROOM)
        for one in missing:
            ray.cancel(one, force=True)
        return {asked[one]: ray.get(one) for one in sorted(found, key=asked.__getitem__)}
