"""The rule that places the trainer and the vLLM servers on GPUs, for the run and for its plan.

    shared    trainer and server take turns on one GPU: the server sleeps while the trainer trains a step
    beside    the trainer has the first GPU, and each server has one of the next GPUs

`auto` chooses `beside` if there is a GPU for every server: no process then sleeps, wakes or waits for memory, so
`beside` is never slower. On a CPU no memory has to be released, and there is nothing to choose.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from posttrain.errors import ConfigError, DoesNotFit

if TYPE_CHECKING:
    from posttrain.config import RunConfig

Placement = Literal["shared", "beside"]
GIB = 2**30
OVERHEAD = 2 * GIB
"""Bytes that a server needs besides weights and cache: its context, graphs and activations. vllm-project/vllm#11743
reports 1.9 GiB for a model of 2.3 GiB."""
RESERVE = GIB
"""Bytes that a trainer on a shared GPU keeps for its own work between two steps: probes and measurements."""
ASLEEP = GIB
"""Bytes of GPU memory that a sleeping server keeps for its context and graphs; the same issue reports 0.9 GiB."""
TURN_SECONDS = 0.5
"""Time to fall asleep and to wake, without the weights, in seconds. vllm-project/vllm#48337 reports 0.1 to 0.3 s for
models of 0.6B to 8B."""


def placement_for(config: RunConfig, cards: int) -> Placement:
    """The placement of the servers of a run, for `cards` GPUs including the trainer's; `beside` on a CPU (0 cards).

    Raises ConfigError if there are too few GPUs for the settings. Servers that run already (`rollout.url`) stay where
    they are: they share the trainer's GPU only if `placement: shared` says so.
    """
    rollout, servers = config.rollout, config.rollout.num_engines
    if cards == 0 or (rollout.url and rollout.placement != "shared"):
        return "beside"
    enough = cards > servers
    if rollout.placement == "shared" or (rollout.placement == "auto" and not enough and _may_share(config)):
        return "shared"
    if enough:
        return "beside"
    raise ConfigError(
        given=f"{servers} server(s) besides the trainer and {cards} GPU(s), with rollout.placement = "
        f"{rollout.placement}, train.run_ahead = {config.train.run_ahead}",
        allowed=f"{servers + 1} GPUs, or one server that shares the trainer's GPU in a synchronous run",
        fix="Set rollout.engines = 1, rollout.placement = shared and train.run_ahead = 0, or make more GPUs visible.",
    )


def _may_share(config: RunConfig) -> bool:
    return config.rollout.num_engines == 1 and config.train.lead == 0


def visible(card: int, variables: Mapping[str, str] = os.environ) -> str:
    """The name of a GPU for CUDA_VISIBLE_DEVICES. `card` is the number under which this process sees the GPU.

    >>> visible(1, {}), visible(1, {"CUDA_VISIBLE_DEVICES": "4,GPU-0af,6"})
    ('1', 'GPU-0af')
    """
    named = [name.strip() for name in variables.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[card] if named else str(card)


def visible_count(reported: int, variables: Mapping[str, str] = os.environ) -> int:
    """The number of GPUs that this process sees; `reported` is the number that the machine has.

    >>> visible_count(8, {}), visible_count(8, {"CUDA_VISIBLE_DEVICES": "4,6"})
    (8, 2)
    """
    named = variables.get("CUDA_VISIBLE_DEVICES")
    return reported if named is None else min(reported, len([name for name in named.split(",") if name.strip()]))


@dataclass(frozen=True, kw_only=True)
class ServerMemory:
    """GPU memory of a server, in bytes."""

    weights: int
    cache: int
    """Size of the cache of keys and values."""
    overhead: int = OVERHEAD
    asleep: int = ASLEEP

    @property
    def awake(self) -> int:
        return self.weights + self.cache + self.overhead


def server_memory(*, weights: int, row: int, rows: int, room: int, servers: int = 1) -> ServerMemory:
    """The memory of a server that decodes `rows` rows together, each with at most `row` bytes of keys and values.

    The `servers` servers share `room` bytes equally. The cache holds all rows, or as many as fit into the server's
    share; it then decodes fewer rows at a time. Raises DoesNotFit if not even one row fits.

    >>> found = server_memory(weights=10 * GIB, row=GIB, rows=64, room=40 * GIB)
    >>> found.cache // GIB, found.awake // GIB
    (28, 40)
    """
    part = room // servers
    cache = min(rows * row, part - weights - OVERHEAD)
    if cache < row:
        raise DoesNotFit(
            given=f"a server with {weights / GIB:.1f} GiB of weights, {OVERHEAD / GIB:.1f} GiB for its own work and "
            f"{row / GIB:.2f} GiB for the longest row does not fit into {part / GIB:.1f} GiB of GPU memory"
            + (f", the part of one of {servers} servers on this GPU" if servers > 1 else ""),
            allowed="room for at least one row",
            fix=("Lower rollout.engines. " if servers > 1 else "")
            + "Set rollout.placement = beside with a GPU of its own, lower sampling.max_completion_length, or train "
            "adapters: `posttrain plan` says what fits.",
        )
    return ServerMemory(weights=weights, cache=cache)
