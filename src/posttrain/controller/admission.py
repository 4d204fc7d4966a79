"""Admission: how many more groups may be begun.

    capacity = min(C - running, min(D + v + 1, last) * P - (accepted + running))          unit: groups

v: completed training steps. last: the last step. P: groups per step. D: `run_ahead`. C: largest number of groups in
flight. `running`: groups begun and not finished. `accepted`: groups finished and neither voided nor abandoned,
including trained ones. A group that is voided or abandoned leaves `running` without entering `accepted`, so its place
becomes free.
"""

from __future__ import annotations

from posttrain.controller.messages import Limits


def capacity(limits: Limits, version: int, accepted: int, running: int) -> int:
    """Number of groups that may be begun now; 0 or less means none. It admits no group that no step would train."""
    steps = min(limits.run_ahead + version + 1, limits.last_version)
    return min(limits.max_groups - running, steps * limits.prompts_per_step - (accepted + running))
