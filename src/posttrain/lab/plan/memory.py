"""The memory of a step before it is paid for: bytes per phase and role.

    predict(Workload(architecture=read_architecture("0.5b"), algorithm="grpo", needs=frozenset({"reference"})))

What runs on one device is counted from what this library does, and was compared with measured live tensor bytes
(docs/planner-measured.md). Sharding, 8-bit moments and engines of their own are computed from papers, see `notes`.
"""

from __future__ import annotations

from collections.abc import Iterator

from posttrain.lab.plan.phases import phases_of
from posttrain.lab.plan.records import MemoryPlan, Workload


def predict(workload: Workload) -> MemoryPlan:
    """Bytes of every phase of a step of this workload, on each device."""
    return MemoryPlan(workload=workload, phases=tuple(phases_of(workload)), notes=tuple(_notes(workload)))


def _notes(workload: Workload) -> Iterator[str]:
    """What of it was never measured here."""
    if workload.device == "cuda":
        yield "memory on a GPU is computed: no GPU was at hand to measure it, and what its libraries hold is not in it"
    if workload.ranks > 1 and workload.sharding != "none":
        yield f"sharding over {workload.ranks} ranks is computed from the papers of ZeRO and FSDP"
    if workload.engine == "separate":
        yield "an engine of its own is computed: weights in its precision, keys and values of all rows in flight"
    if workload.optimizer_bits == 8:
        yield "moments in 8 bits are computed: this version trains with 32"
    if any(block.mixture is not None for _, block in workload.architecture.blocks):
        yield "activations of experts are computed for tokens that are spread evenly"
