"""Where the processes of a run are, if they are not on the trainer's machine."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from posttrain.child import Child, EngineChild
from posttrain.errors import ConfigError

if TYPE_CHECKING:
    from posttrain.config import RunConfig
    from posttrain.engines.published import Publications


class Hosts(Protocol):
    """Machines that hold engines and reward workers. What is started there talks as a process of this machine does."""

    @property
    def workers(self) -> int:
        """Reward workers that find room; 0: they are to stay here."""
        ...

    def start_worker(self, output: int) -> Child:
        """A process in which rewards are computed; see `LocalWorker`."""
        ...

    def start_engine(self, program: str, output: int, *, files: Sequence[int], threads: int) -> EngineChild:
        """See `LocalEngine`. It reads what `publications` keeps; `files` is empty."""
        ...

    def publications(self, tensors: Mapping[str, tuple[str, Sequence[int]]]) -> Publications:
        """Where its engines find weights: tensors of these precisions and shapes."""
        ...


class RankProcess(Protocol):
    """A rank, as whoever started it sees it. No call waits for it."""

    def end(self) -> int | str | None:
        """How it ended, see `Child`; None where it has not."""
        ...

    def signal(self, number: int) -> None:
        """Send it a signal, unless it has ended; one that has not been started yet gets it then."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...


class RankHosts(Protocol):
    """Machines that hold the ranks of a job."""

    def room(self, size: int) -> int:
        """How many of so many ranks can be started now; it waits a while for machines that take the place of lost ones.
        Raises DoesNotFit where there are none."""
        ...

    def start(self, file: Path, size: int) -> AbstractContextManager[Sequence[RankProcess]]:
        """Start so many, for which there was room, as `python -m posttrain.train.rank FILE`, each with its place in the
        job in its environment. However the context ends, they have ended with it."""
        ...


Say = Callable[[str], None]


class Cluster(Protocol):
    """One kind of cluster. What a context has reserved and started there ends with it.

    Both raise ConfigError where there is no such cluster, DoesNotFit where it has no room.
    """

    def hosts(self, config: RunConfig, say: Say, warn: Say) -> AbstractContextManager[Hosts]:
        """Machines for what the trainer starts; says what they hold, and warns of what is lost."""
        ...

    def ranks(self, config: RunConfig, size: int, output: int | None) -> AbstractContextManager[RankHosts]:
        """Machines for so many ranks, and for all that these start; `output` is where ranks print to."""
        ...


CLUSTERS: dict[str, Cluster] = {}
"""How each kind of cluster is connected to; the package itself fills it in."""


def require_cluster(config: RunConfig) -> None:
    """Raise ConfigError where the run asks for a cluster and what connects to it is not installed."""
    if config.cluster is not None:
        require_ray(f"cluster = {config.cluster.address}")


def require_ray(given: str) -> None:
    """Raise ConfigError where Ray is not installed; `given` is what asks for it."""
    found = importlib.util.find_spec("ray")
    if found is None or found.origin is None:  # the second: a folder of that name
        raise ConfigError(
            given=f"{given}, and the package ray is not installed",
            allowed="an environment with the same version of Ray as the cluster",
            fix="pip install 'posttrain[ray]'",
        )


def hosts_of(config: RunConfig, resources: ExitStack, say: Say, warn: Say) -> Hosts | None:
    """None where everything is on this machine. `resources` ends what is started. Raises ConfigError where there is no
    such cluster, DoesNotFit where it has no room."""
    if config.cluster is None:
        return None
    return resources.enter_context(CLUSTERS["ray"].hosts(config, say, warn))
