"""The sampler for the prompts of an evaluation or of a conversation: this process, or vLLM servers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from posttrain.config import RolloutConfig
from posttrain.config.rules import misnamed_servers
from posttrain.errors import ConfigError

RolloutArgument = RolloutConfig | Mapping[str, Any]
"""The section `rollout` of a config, or a mapping with some of its settings."""


def rollout_of(run: RolloutConfig | None, given: RolloutArgument | None = None) -> RolloutConfig:
    """Combine the settings in `given` with those of the run, if any: the run's engine answers later, too.

    A run's local engines in processes share the machine with its trainer. Without training, one process uses all of it.
    Raises ConfigError for settings that conflict or have no effect.
    """
    own = RolloutConfig() if run is None or run.engine == "local" else run
    if isinstance(given, RolloutConfig):
        given = given.model_dump(exclude_unset=True)
    given = dict(given or {})
    kept = own.model_dump(exclude_unset=True) if given.get("engine", own.engine) == own.engine else {}
    if {"url", "engines"} & given.keys():
        kept = {name: value for name, value in kept.items() if name not in ("url", "engines")}
    rollout = RolloutConfig(**{**kept, **given})
    if (error := misnamed_servers(rollout)) is not None:
        raise error
    idle = [name for name in given if name != "engine"]
    if rollout.engine == "local" and idle:
        raise ConfigError(
            given=f"rollout.{idle[0]} = {given[idle[0]]} with rollout.engine = local, but nothing is trained here",
            allowed="rollout.engine = vllm, or none of its settings",
            fix=f"Set rollout.engine = vllm, or leave rollout.{idle[0]} out: this process answers with all cores.",
        )
    return rollout


def tell(text: str) -> None:
    """Print a message about servers to stderr, because stdout carries the result."""
    print(text, file=sys.stderr, flush=True)
