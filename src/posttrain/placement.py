"""Trainer and vLLM servers on one GPU in turns, or on a GPU each: the rule, for the run and for its plan.

    shared    one GPU: the server sleeps while a step is trained, the trainer keeps what it needs from step to step
    beside    the trainer on the first GPU, a server on each of the next ones

`auto` takes `beside` where there is a GPU for every server: nobody sleeps, wakes or waits for memory, so that it is
never slower. On a CPU nothing has to be given back, and there is nothing to choose.
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
"""Of a server beside weights and cache: its context, graphs, activations. vllm-project/vllm#11743 has 1.9 GiB of them
for a model of 2.3 GiB."""
RESERVE = GIB
"""Left to a trainer that shares its GPU for its own work between two steps: probes, measurements."""
ASLEEP = GIB
"""The memory of a GPU that a sleeping server keeps, for its context and graphs; 0.9 GiB in the same place."""
TURN_SECONDS = 0.5
"""To fall asleep and to wake, the weights left out: vllm-project/vllm#48337 has 0.1 to 0.3 s for 0.6B to 8B."""


def placement_for(config: RunConfig, cards: int) -> Placement:
    """Where the servers of a run are, with so many GPUs, that of the trainer included; `beside` on a CPU (0 cards).

    Raises ConfigError where there are too few for what the settings ask for. Servers that are there already
    (`rollout.url`) are where they are: they share the trainer's GPU only if `placement: shared` says so.
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
        given=f"{servers} server(s) beside the trainer and {cards} GPU(s), with rollout.placement = "
        f"{rollout.placement}, train.run_ahead = {config.train.run_ahead}",
        allowed=f"{servers + 1} GPUs, or one server that shares the trainer's GPU in a synchronous run",
        fix="Set rollout.engines = 1, rollout.placement = shared and train.run_ahead = 0, or make more GPUs visible.",
    )


def _may_share(config: RunConfig) -> bool:
    return config.rollout.num_engines == 1 and config.train.lead == 0


def visible(card: int, variables: Mapping[str, str] = os.environ) -> str:
    """The name in CUDA_VISIBLE_DEVICES of the GPU that this process sees as number `card`.

    >>> visible(1, {}), visible(1, {"CUDA_VISIBLE_DEVICES": "4,GPU-0af,6"})
    ('1', 'GPU-0af')
    """
    named = [name.strip() for name in variables.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[card] if named else str(card)


def visible_count(reported: int, variables: Mapping[str, str] = os.environ) -> int:
    """Of so many GPUs of the machine, those that this process sees.

    >>> visible_count(8, {}), visible_count(8, {"CUDA_VISIBLE_DEVICES": "4,6"})
    (8, 2)
    """
    named = variables.get("CUDA_VISIBLE_DEVICES")
    return reported if named is None else min(reported, len([name for name in named.split(",") if name.strip()]))


@dataclass(frozen=True, kw_only=True)
class ServerMemory:
    """Bytes of a GPU that a server takes."""

    weights: int
    cache: int
    """Of keys and values."""
    overhead: int = OVERHEAD
    asleep: int = ASLEEP

    @property
    def awake(self) -> int:
        return self.weights + self.cache + self.overhead


def server_memory(*, weights: int, row: int, rows: int, room: int, servers: int = 1) -> ServerMemory:
    """Of a server that decodes `rows` together, each with `row` bytes of keys and values at its longest.

    The cache holds all of them, or what fits into the server's part of `room`, the memory that is there for so many
    `servers`: it then decodes fewer at once. Raises DoesNotFit where that is less than one row.

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
