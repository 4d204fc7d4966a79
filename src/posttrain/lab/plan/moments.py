"""Moments: what is alive at one instant of a phase beside what stays from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from posttrain.lab.plan.records import Part, Role, Workload

RECORD_BYTES = 72
"""Of each place of the padded records of a step: ids and versions of 8 bytes, masks of one, and a dozen numbers of 4,
most of them twice: as experience, and as the rows of a batch."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The moments of a phase are compared, and the largest one stands for the phase."""

    name: str
    parts: Sequence[Part]

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.parts)


def part(role: Role, what: str, size: int, why: str = "") -> Part:
    """What is there for a moment."""
    return Part(role=role, what=what, bytes=size, why=why)


def records(workload: Workload) -> Part:
    """Token ids, masks, log-probabilities, advantages."""
    size = RECORD_BYTES * workload.rows * workload.row_tokens
    return part("policy", "records of the step", size, f"{workload.rows} rows of {workload.row_tokens} places")
