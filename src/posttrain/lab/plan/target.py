"""Where a run is planned to run: hardware, and what its config does not say about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf
from typing import Any

from posttrain.config import RunConfig
from posttrain.errors import ConfigError
from posttrain.lab.plan.calibration import this_machine
from posttrain.lab.plan.hardware import Hardware, find_hardware
from posttrain.lab.plan.records import Engine, Sharding
from posttrain.lab.plan.workload import RowLengths


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where and how a run is planned to run, beside its config."""

    hardware: Hardware
    engine: Engine | None = None
    """None: as the config has it."""
    engine_ranks: int = 1
    sharding: Sharding = "none"
    optimizer_bits: int = 32
    mean_completion_tokens: int | None = None
    prompt_tokens: int | None = None
    price: float | None = None
    """Dollars per device and hour; None: the table's range."""
    lengths: RowLengths | None = None
    """Of the data, where it is on this machine."""

    @property
    def here(self) -> bool:
        """This machine, whose free memory and disk count."""
        return self.hardware.free_memory is not None


def target_of(config: RunConfig, gpus: str | None, **how: Any) -> Target:
    """`gpus` by name, several of one kind sharded fully unless said otherwise; this machine without a name."""
    hardware = this_machine(config.model.device) if gpus is None else find_hardware(gpus)
    known = [field.name for field in fields(Target) if field.name not in ("hardware", "lengths")]
    if unknown := how.keys() - set(known):
        raise ConfigError(
            given=f"a plan knows no {min(unknown)!r}",
            allowed=f"gpus, {', '.join(known)}",
            fix="Settings of the config go into overrides: {'train.steps': 50}.",
        )
    given = {name: value for name, value in how.items() if value is not None}
    _check_target(config, given)
    if hardware.count > 1:
        given.setdefault("sharding", "full")
    return Target(hardware=hardware, **given)


def _check_target(config: RunConfig, given: Mapping[str, Any]) -> None:
    """Raise ConfigError for numbers that no run can have."""
    longest = config.sampling.max_completion_length
    within = {
        "engine_ranks": ("--engine-gpus", 1, inf),
        "mean_completion_tokens": ("--mean-completion-length", 1, longest),
        "prompt_tokens": ("--prompt-length", 1, inf),
        "price": ("--price", 0, inf),
    }
    for name, (option, least, most) in within.items():
        if name in given and not least <= given[name] <= most:
            until = f" to {most}, which is sampling.max_completion_length" if most != inf else " or more"
            raise ConfigError(
                given=f"{name} = {given[name]} ({option})",
                allowed=f"{least}{until}",
                fix=f"For example {option} {max(1, least) if most == inf else min(most, max(1, longest // 2))}.",
            )
