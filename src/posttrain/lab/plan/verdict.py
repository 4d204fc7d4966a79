"""Does a run fit: compares needed bytes of memory and disk with available ones.

For memory, the answer accounts for the error of the estimate:

yes        even if the estimate is too low by its stated error
probably   by the estimate, but not if it is too low by that much
hardly     only if the estimate is too high
no         not even if the estimate is too high by its stated error: the run is refused

On disk, a run keeps some of its checkpoints, and every sampled answer.

    checkpoint = model (float32, adapters merged) + state (trained weights and two moments of each, critic included)

A new checkpoint is complete before an old one is deleted, so for a moment there is one more than are kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from posttrain.config import CheckpointConfig
from posttrain.lab.plan.records import Workload
from posttrain.lab.plan.roles import moment_bytes, policy_parameters, trained_parameters
from posttrain.lab.plan.target import free_disk

GIB = 2**30
Answer = Literal["yes", "probably", "hardly", "no"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on the memory of one device."""

    needed: int
    available: int
    error: float
    """Relative error of the estimate, in either direction."""
    swap: int = 0
    """Bytes of swap. A run that needs it fits, but is very slow."""

    @property
    def answer(self) -> Answer:
        if self.needed * (1 + self.error) <= self.available:
            return "yes"
        if self.needed <= self.available:
            return "probably"
        return "hardly" if self.needed * (1 - self.error) <= self.available + self.swap else "no"

    @property
    def fits(self) -> bool:
        """Does it fit, by the estimate?"""
        return self.needed <= self.available

    @property
    def surely(self) -> int:
        """The largest estimate with the answer yes."""
        return int(self.available / (1 + self.error))

    @property
    def refused(self) -> bool:
        return self.answer == "no"

    def sentence(self, devices: int = 1) -> str:
        """Return the verdict as text: `fits: yes, 71 of 80 GiB`."""
        needed, available = size(self.needed), size(self.available)
        if needed.endswith("GiB") and available.endswith("GiB"):
            needed = needed.removesuffix(" GiB")
        return f"fits: {self.answer}, {needed} of {available}" + (" on each device" if devices > 1 else "")


def size(number: float) -> str:
    """Format bytes for people.

    >>> [size(n) for n in (0, 3 * 2**20, 1.5 * 2**30, 71 * 2**30)]
    ['0 MiB', '3 MiB', '1.5 GiB', '71 GiB']
    """
    if number < 0.1 * GIB:
        return f"{number / 2**20:,.0f} MiB"
    return f"{number / GIB:,.1f} GiB" if number < 9.95 * GIB else f"{number / GIB:,.0f} GiB"


# --- disk ------------------------------------------------------------------------------------------------------------


ROLLOUT_BYTES = 16
"""Bytes per sampled token in rollouts/: text, id, log-probability and advantage, compressed."""
WEIGHT = 4
"""Bytes per weight: checkpoints are float32."""


@dataclass(frozen=True, kw_only=True)
class DiskPlan:
    """The bytes that a run needs on disk."""

    model: int
    """Bytes of the model in one checkpoint."""
    state: int
    """Bytes of the state in one checkpoint."""
    checkpoints: int
    """Maximum number of checkpoints that exist at the same time."""
    rollouts: int
    """Bytes of the rollouts of all steps."""
    free: int | None = None
    """Free bytes at the place of the run folder. None for another machine."""

    @property
    def checkpoint(self) -> int:
        return self.model + self.state

    @property
    def total(self) -> int:
        return self.checkpoints * self.checkpoint + self.rollouts

    @property
    def first_save(self) -> int:
        """Bytes that the run needs before its first step: a checkpoint, to prove that it can write one."""
        return self.checkpoint

    @property
    def fits(self) -> bool | None:
        return None if self.free is None else self.total <= self.free


def disk_of(workload: Workload, checkpoint: CheckpointConfig, *, folder: Path | None, step_tokens: int) -> DiskPlan:
    """Return the disk plan for a run in this folder (None: elsewhere). `step_tokens` assume the longest answers."""
    by_role = trained_parameters(workload)
    trained = sum(by_role.values())
    adapters = by_role["policy"] if workload.lora is not None else 0
    later = workload.steps // checkpoint.every if checkpoint.every else 0
    at_the_end = workload.steps % checkpoint.every > 0 if checkpoint.every else True
    saved = 1 + later + at_the_end
    return DiskPlan(
        model=WEIGHT * (policy_parameters(workload) + adapters),
        state=WEIGHT * trained + moment_bytes(replace(workload, sharding="none"), trained),
        checkpoints=min(saved, checkpoint.keep + 1),
        rollouts=ROLLOUT_BYTES * step_tokens * workload.steps if workload.data_kind == "prompts" else 0,
        free=None if folder is None else free_disk(folder),
    )
