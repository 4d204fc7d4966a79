"""The memory of a step before it is paid for: bytes per phase and role.

    predict(Workload(architecture=read_architecture("0.5b"), algorithm="grpo", needs=frozenset({"reference"})))

What runs on one device is counted from what this library does, and was compared with measured live tensor bytes
(docs/planner-measured.md). Sharding, 8-bit moments and engines of their own are computed from papers, see `notes`.
"""

from __future__ import annotations

from posttrain.advise.plan.phases import phases_of
from posttrain.advise.plan.records import MemoryPlan, Workload


def predict(workload: Workload) -> MemoryPlan:
    """Bytes of every phase of a step of this workload, on each device."""
    return MemoryPlan(workload=workload, phases=tuple(phases_of(workload)), notes=())
