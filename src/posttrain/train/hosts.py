"""Where the processes of a run are, if they are not on the trainer's machine."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
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


Say = Callable[[str], None]
Connect = Callable[["RunConfig", Say, Say], AbstractContextManager[Hosts]]
"""Reserves what a run asks for; says what that is, and warns of what is lost. All that was started ends with it."""

CLUSTERS: dict[str, Connect] = {}
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
            allowed="an environment with Ray, of the version that the cluster has",
            fix="pip install 'posttrain[ray]'",
        )


def hosts_of(config: RunConfig, resources: ExitStack, say: Say, warn: Say) -> Hosts | None:
    """None where everything is on this machine. `resources` ends what is started. Raises ConfigError where there is no
    such cluster, DoesNotFit where it has no room."""
    if config.cluster is None:
        return None
    return resources.enter_context(CLUSTERS["ray"](config, say, warn))
