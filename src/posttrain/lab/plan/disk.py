"""What a run writes: its checkpoints, of which some are kept, and every answer that it sampled.

    checkpoint = model (float32, adapters merged) + state (trained weights and two moments of each, critic included)

A new checkpoint is whole before an old one goes, so for a moment there is one more than are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from posttrain.config import CheckpointConfig
from posttrain.lab.plan.available import free_disk
from posttrain.lab.plan.records import Workload

ROLLOUT_BYTES = 16
"""Of a sampled token in rollouts/: text, id, log-probability and advantage, compressed."""
WEIGHT, MOMENTS = 4, 8
"""Bytes: checkpoints are exact, so moments are saved as float32."""


@dataclass(frozen=True, kw_only=True)
class DiskPlan:
    """Bytes on disk."""

    model: int
    """Of one checkpoint."""
    state: int
    """Of one checkpoint."""
    checkpoints: int
    """How many there are at once, at most."""
    rollouts: int
    """Of all steps."""
    free: int | None = None
    """Where the run folder would be; None for another machine."""

    @property
    def checkpoint(self) -> int:
        return self.model + self.state

    @property
    def total(self) -> int:
        return self.checkpoints * self.checkpoint + self.rollouts

    @property
    def first_save(self) -> int:
        """What the run needs before its first step: a checkpoint that proves that one can be written."""
        return self.checkpoint

    @property
    def fits(self) -> bool | None:
        return None if self.free is None else self.total <= self.free


def disk_of(workload: Workload, checkpoint: CheckpointConfig, *, folder: Path | None, step_tokens: int) -> DiskPlan:
    """For a run in this folder; None: elsewhere. `step_tokens` are those of a step with the longest answers."""
    policy = workload.architecture
    trained = policy.parameters if workload.lora is None else _adapters(workload)
    critic = {
        "none": 0,
        "shared": policy.hidden + 1,
        "lora": policy.lora_parameters(workload.critic_rank) + policy.hidden + 1,
        "separate": (workload.critic_architecture or policy).trunk_parameters + policy.hidden + 1,
    }[workload.critic]
    later = workload.steps // checkpoint.every if checkpoint.every else 0
    at_the_end = workload.steps % checkpoint.every > 0 if checkpoint.every else True
    saved = 1 + later + at_the_end
    return DiskPlan(
        model=WEIGHT * (policy.parameters + (trained if workload.lora is not None else 0)),
        state=(WEIGHT + MOMENTS) * (trained + critic),
        checkpoints=min(saved, checkpoint.keep + 1),
        rollouts=ROLLOUT_BYTES * step_tokens * workload.steps if workload.data_kind == "prompts" else 0,
        free=None if folder is None else free_disk(folder),
    )


def _adapters(workload: Workload) -> int:
    assert workload.lora is not None, "a workload with adapters"
    return workload.architecture.lora_parameters(workload.lora.rank, workload.lora.targets)
