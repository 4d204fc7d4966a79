"""The machines that hold the processes of a run, if they are not on the trainer's machine."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from posttrain.errors import ConfigError

if TYPE_CHECKING:
    from posttrain.child import Child, EngineChild
    from posttrain.config import RunConfig
    from posttrain.engines.published import Publications

STARTED = "started"
"""A file beside the JOB.json of ranks: the first rank has imported everything and hears signals."""


class Hosts(Protocol):
    """Machines that hold engines and reward workers. A process there communicates in the same way as a local one."""

    @property
    def workers(self) -> int:
        """Number of reward workers that have room there; 0: they run on this machine."""
        ...

    def start_worker(self, output: int) -> Child:
        """Start a process that computes rewards; see `LocalWorker`."""
        ...

    def start_engine(self, program: str, output: int, *, files: Sequence[int], threads: int) -> EngineChild:
        """Start an engine; see `LocalEngine`. It reads weights from `publications`; `files` is empty."""
        ...

    def publications(self, tensors: Mapping[str, tuple[str, Sequence[int]]]) -> Publications:
        """The place from which engines read weights: tensors of these precisions and shapes."""
        ...


class RankProcess(Protocol):
    """A rank, as seen by the process that started it. No method blocks."""

    def end(self) -> int | str | None:
        """How the rank ended, see `Child`; None while it runs."""
        ...

    def signal(self, number: int) -> None:
        """Send the rank a signal, unless it has ended. A rank that has not started yet gets it when it starts."""
        ...

    def kill(self) -> None:
        """End the rank immediately."""
        ...


class RankHosts(Protocol):
    """Machines that hold the ranks of a job."""

    def room(self, size: int) -> int:
        """Number of ranks, out of `size`, that can be started now.

        It waits a while for machines that replace lost ones. Raises DoesNotFit if no rank can be started."""
        ...

    def start(self, file: Path, size: int) -> AbstractContextManager[Sequence[RankProcess]]:
        """Start `size` ranks as `python -m posttrain.train.rank FILE`; `room` must have confirmed that they fit.

        The environment of each rank holds its place in the job. All ranks have ended when the context ends."""
        ...


Say = Callable[[str], None]


class Cluster(Protocol):
    """One kind of cluster. Everything that a context has reserved and started there ends with the context.

    Both methods raise ConfigError if there is no such cluster, and DoesNotFit if it has no room.
    """

    def hosts(self, config: RunConfig, say: Say, warn: Say) -> AbstractContextManager[Hosts]:
        """Machines for the processes that the trainer starts. Reports what they hold, and warns of lost ones."""
        ...

    def ranks(self, config: RunConfig, size: int, output: int | None) -> AbstractContextManager[RankHosts]:
        """Machines for `size` ranks and for the processes that these start; ranks print to the file `output`."""
        ...


CLUSTERS: dict[str, Cluster] = {}
"""The supported kinds of clusters by name; `posttrain/__init__.py` fills it in."""


def require_cluster(config: RunConfig) -> None:
    """Raise ConfigError if the run asks for a cluster and the package that connects to it is not installed."""
    if config.cluster is not None:
        require_ray(f"cluster = {config.cluster.address}")


def require_ray(given: str) -> None:
    """Raise ConfigError if Ray is not installed; `given` names the setting that needs it."""
    found = importlib.util.find_spec("ray")
    if found is None or found.origin is None:  # origin is None for a mere folder named ray
        raise ConfigError(
            given=f"{given}, and the package ray is not installed",
            allowed="an environment with the same version of Ray as the cluster",
            fix="pip install 'posttrain[ray]'",
        )


def hosts_of(config: RunConfig, resources: ExitStack, say: Say, warn: Say) -> Hosts | None:
    """The machines of the run's cluster; None if everything is on this machine. `resources` ends what is started.

    Raises ConfigError if there is no such cluster, and DoesNotFit if it has no room."""
    if config.cluster is None:
        return None
    return resources.enter_context(CLUSTERS["ray"].hosts(config, say, warn))
