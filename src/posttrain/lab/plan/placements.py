"""Two placements of trainer and vLLM server: one GPU in turns, or a GPU each. Memory and steps per hour of both.

    shared    generate: the trainer's resident memory + weights, cache and overhead of the server
              score, train, publish: their memory + that of a sleeping server
    beside    generate, on a separate GPU: weights, cache and overhead; the other phases are unchanged

posttrain/placement.py decides which one a run uses. A step in turns on one GPU takes as long as on two, plus a sleep
and a wake. Sampling can run ahead only with two GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from posttrain.config import RunConfig
from posttrain.errors import DoesNotFit
from posttrain.lab.plan.records import BYTES, MemoryPlan, Part, Phase, Workload, part
from posttrain.lab.plan.roles import resident
from posttrain.lab.plan.side_by_side import SideBySide
from posttrain.lab.plan.target import Target, corrected
from posttrain.lab.plan.timing import StepCost
from posttrain.lab.plan.verdict import Verdict
from posttrain.placement import ASLEEP, RESERVE, TURN_SECONDS, Placement, ServerMemory, placement_for, server_memory

NOTE = "a vLLM server's memory other than weights and cache, awake and asleep, is from vllm-project/vllm#11743"


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A run with its server in one of the two placements."""

    placement: Placement
    chosen: bool
    """True if the run uses this placement."""
    server: ServerMemory
    memory: MemoryPlan
    verdict: Verdict
    """The verdict on the GPU that needs most."""
    steps_per_hour: float

    def to_json(self) -> dict[str, Any]:
        return {
            "placement": self.placement,
            "chosen": self.chosen,
            "fits": self.verdict.answer,
            "bytes": self.verdict.needed,
            "steps_per_hour": self.steps_per_hour,
            "server": {**asdict(self.server), "awake": self.server.awake},
        }


def has_server(config: RunConfig, workload: Workload) -> bool:
    """Does a vLLM server take GPU memory?"""
    return config.rollout.engine == "vllm" and workload.device == "cuda" and workload.data_kind == "prompts"


def placements(
    config: RunConfig, memory: MemoryPlan, cost: StepCost, target: Target, *, error: float
) -> tuple[Placed, ...]:
    """Plan both placements. Raises ConfigError if there are too few GPUs for the settings."""
    taken, whole = placement_for(config, target.cards), target.hardware.memory
    found = list[Placed]()
    for placement in ("shared", "beside"):
        stays = RESERVE + sum(one.bytes for one in resident(memory.workload)) if placement == "shared" else 0
        server = server_of(memory.workload, room=whole - stays)
        placed = replace(memory, phases=tuple(_phases(memory, server, placement)), notes=(*memory.notes, NOTE))
        apart = [phase.bytes for phase in placed.phases if phase.place == "engine"]
        needed = max(corrected(placed, target.hardware.memory_factor), *apart, 0)
        seconds = cost.seconds + (TURN_SECONDS if placement == "shared" else 0.0)
        found.append(
            Placed(
                placement=placement,
                chosen=placement == taken,
                server=server,
                memory=placed,
                verdict=Verdict(needed=needed, available=whole, error=error, swap=0),
                steps_per_hour=3600 / seconds,
            )
        )
    return tuple(found)


def simulated_placements(placed: Sequence[Placed], found: SideBySide) -> tuple[Placed, ...]:
    """Set the simulated steps per hour: in turns on one GPU, or with the run's lead on two."""
    in_turns = 3600 / (3600 / found.in_turns + TURN_SECONDS)
    hourly = {"shared": in_turns, "beside": found.steps_per_hour}
    return tuple(replace(one, steps_per_hour=hourly[one.placement]) for one in placed)


def server_of(workload: Workload, *, room: int) -> ServerMemory:
    """Return the server's memory, with a cache of one row if nothing fits. It holds tied embeddings as two tensors."""
    a, each = workload.architecture, BYTES[workload.precision]
    weights = each * (a.parameters + (a.vocabulary * a.hidden if a.tied else 0))
    row = each * a.layers * a.kv_width * workload.row_tokens
    try:
        return server_memory(weights=weights, row=row, rows=workload.max_batch_rows, room=room)
    except DoesNotFit:
        return ServerMemory(weights=weights, cache=row)


def _phases(memory: MemoryPlan, server: ServerMemory, placement: Placement) -> Iterator[Phase]:
    awake = (
        Part(role="sampler", what="copy of the weights", bytes=server.weights),
        part("sampler", "keys and values", server.cache),
        part("sampler", "context and graphs", server.overhead),
    )
    asleep = part("sampler", "asleep", ASLEEP)
    for phase in memory.phases:
        if placement == "beside":
            yield replace(phase, parts=awake) if phase.name == "generate" else phase
        elif phase.name == "generate":
            yield replace(phase, parts=(*resident(memory.workload), *awake), place="trainer")
        else:
            yield replace(phase, parts=(*phase.parts, asleep))
