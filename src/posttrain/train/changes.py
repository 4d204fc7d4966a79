"""Changes that `resume` makes to a run's settings, both in the config that it uses and in the run's config.yaml."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from posttrain.config import load_config

FROM = "command line of resume"


@dataclass(frozen=True, kw_only=True)
class Changes:
    steps: int | None = None
    devices: int | None = None
    """Number of ranks."""
    tensor: int | None = None
    """Number of ranks that share each matrix (tensor parallelism)."""
    leaves_cluster: bool = False
    """Whether to remove the section `cluster`: only ranks used the cluster, and the run continues with one device. The
    config rules refuse a cluster without ranks and engines."""

    @staticmethod
    def of(folder: Path, steps: int | None, devices: int | None, tensor: int | None = None) -> Changes:
        """The changes to the run in this folder. Raises ConfigError for a config.yaml that cannot be read."""
        leaves = False
        if devices == 1:
            config = load_config(folder / "config.yaml").config
            leaves = config.cluster is not None and config.rollout.engines == 0
        return Changes(steps=steps, devices=devices, tensor=tensor, leaves_cluster=leaves)

    def __bool__(self) -> bool:
        return any(value is not None for value in self._numbers.values())

    @property
    def overrides(self) -> list[str]:
        """The changes as overrides of the command line."""
        changed = [f"train.{name}={value}" for name, value in self._numbers.items() if value is not None]
        return [*changed, "cluster=null"] if self.leaves_cluster else changed

    def written_into(self, config: str) -> str:
        """The text of a run's config.yaml with the changes. The noted origins of all other values stay."""
        for name, value in self._numbers.items():
            config = with_setting(config, name, value)
        return without_cluster(config) if self.leaves_cluster else config

    @property
    def _numbers(self) -> dict[str, int | None]:
        """New values of settings in the section `train`; None for no change."""
        return {"steps": self.steps, "devices": self.devices, "tensor": self.tensor}


def with_setting(config: str, name: str, value: int | None) -> str:
    """The text of a config.yaml with another number in `train`.

    >>> with_setting("train:\\n  steps: 2  # file:a.yaml\\n  epochs: 1  # default\\n", "steps", 3)
    'train:\\n  steps: 3  # command line of resume\\n  epochs: 1  # default\\n'
    """
    if value is None:
        return config
    return re.sub(rf"(?m)^(train:\n(?: .*\n)*?  {name}: ).*$", rf"\g<1>{value}  # {FROM}", config)


def without_cluster(config: str) -> str:
    """The text of a config.yaml without its section `cluster`.

    >>> without_cluster("seed: 1\\ncluster:\\n  address: auto  # caller\\ntrain:\\n  steps: 2\\n")
    'seed: 1\\ncluster: null  # command line of resume\\ntrain:\\n  steps: 2\\n'
    """
    return re.sub(r"(?m)^cluster:.*\n(?: .*\n)*", f"cluster: null  # {FROM}\n", config)
