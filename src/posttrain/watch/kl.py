"""The alarm about a jump of the KL to the reference.

The KL of a good run also grows from 0, at first as the square of the step, so it is always large compared with its
start. A jump is large compared with all earlier steps and with the ten steps before. There is no alarm if an
independent score has risen.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from posttrain.watch.records import Alarm, Step

if TYPE_CHECKING:
    from posttrain.config.sections import AlarmConfig

WITHIN = 10
"""Number of steps within which the KL jumps."""
LAST = 3
"""Number of last steps whose median is the present KL, so that one outlier is no jump."""
ENOUGH = 50
"""Number of earlier steps that the alarm needs, because the KL of every run multiplies at first."""


class KLJump:
    """Fires if the present median exceeds `ratio` times that of all earlier steps, and `ratio` / 2 times that of the
    ten steps before the last ten."""

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio
        self.values: list[float] = []

    @staticmethod
    def of(config: AlarmConfig) -> dict[str, KLJump]:
        return {} if config.kl_ratio is None else {"kl": KLJump(config.kl_ratio)}

    def observe(self, step: Step) -> Alarm | None:
        value = step.metrics.get("kl", math.nan)
        if not math.isfinite(value):
            return None
        self.values.append(value)
        earlier = self.values[:-WITHIN]
        if len(earlier) < ENOUGH:
            return None
        now, typical = statistics.median(self.values[-LAST:]), statistics.median(earlier)
        before = statistics.median(earlier[-WITHIN:])
        if not (now > self.ratio * typical > 0 and now > self.ratio / 2 * before) or step.heldout == "rose":
            return None
        halfway = (now + before) / 2
        rise = next(n for n, one in enumerate(self.values[-WITHIN:]) if one > halfway)
        return Alarm(
            kind="kl",
            step=step.number,
            change_point=step.number - WITHIN + 1 + rise,
            message=f"the KL to the reference jumped from {before:.3g} to {now:.3g} nats within {WITHIN} steps "
            f"(its median before: {typical:.3g})",
            evidence={"now": now, "before": before, "typical": typical, "ratio": self.ratio},
        )

    def state(self) -> dict[str, Any]:
        return {"values": self.values}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.values = list(state["values"])
