"""A jump of the KL to the reference.

The KL of an honest run grows, too, from 0, as the square of the step at first: compared with its start it is always
large. A jump is what is large beside all that came before and beside the ten steps before, while an independent score,
where there is one, has not risen.
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
"""Steps within which it jumps."""
LAST = 3
"""Steps whose median is the present KL: one outlier is no jump."""
ENOUGH = 50
"""Steps before those, from which on something can be said: at first the KL of every run multiplies."""


class KLJump:
    """Its present median is `ratio` times that of all earlier steps, and half of that times that of ten steps ago."""

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
