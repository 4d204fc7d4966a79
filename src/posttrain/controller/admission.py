"""How many more groups may be begun.

    capacity = min(C - running, (D + v + 1) * P - (accepted + running))          unit: groups

v: completed train steps. P: groups of a step. D: `run_ahead`. C: most groups in flight. `running`: groups begun and not
finished. `accepted`: groups finished and neither voided nor given up, those trained included. A group that is voided or
given up leaves `running` without entering `accepted`: its place comes back.
"""

from __future__ import annotations

from posttrain.controller.messages import Limits


def capacity(limits: Limits, version: int, accepted: int, running: int) -> int:
    """Groups that may be begun now; 0 or less: none. No group is begun that no step will train."""
    steps = min(limits.run_ahead + version + 1, limits.last_version)
    return min(limits.max_groups - running, steps * limits.prompts_per_step - (accepted + running))
