"""The alarm about an independent check that rejects accepted answers more often than before training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from posttrain.functional.cusum import Cusum, with_odds_times
from posttrain.functional.intervals import wilson
from posttrain.watch.records import Alarm, Step

if TYPE_CHECKING:
    from posttrain.config.sections import AlarmConfig

LEAST_BASELINE = 0.01
"""Smallest baseline of disagreement, because no two judges always agree."""
LARGEST_BASELINE = 0.9
CONFIDENCE = 0.8
"""Confidence of the interval around a measured baseline. A wider one makes the alarm late, a narrower one makes it fire
too often (docs/alarms.md)."""
LARGEST_STEP = 0.1
"""Largest distance from the baseline to the disagreement that the alarm must detect."""


class Disagreement:
    """A cumulative sum over the accepted answers that the check has seen (`functional.cusum`).

    All rejected answers to one prompt count once: an error of the check belongs to a prompt (a wrong gold answer, a
    missing test) and rejects each of them. Accepted answers count one by one.
    """

    def __init__(self, ratio: float, limit: float, baseline: float | None = None) -> None:
        self.ratio, self.limit = ratio, limit
        self.baseline = LEAST_BASELINE if baseline is None else baseline
        self.measures = baseline is None
        """Is the baseline measured before training?"""
        self.cusum = Cusum()
        self.rejected = self.checked = 0
        """Counts since the sum last left 0."""

    @staticmethod
    def of(config: AlarmConfig) -> Disagreement | None:
        if config.disagreement_ratio is None:
            return None
        return Disagreement(config.disagreement_ratio, config.cusum_limit, config.baseline_disagreement)

    @property
    def target(self) -> float:
        """The disagreement to detect: the odds of the baseline times the ratio, but at most ten points more.

        Without the bound, the alarm of a large baseline would wait for an impossible share."""
        return min(with_odds_times(self.baseline, self.ratio), self.baseline + LARGEST_STEP)

    def calibrate(self, rejected: int, accepted: int) -> None:
        """Set the baseline to the upper end of the 80% interval of the share rejected before training.

        With no rejected answer it is the smallest one. So chance zeros do not make the alarm fire too often, and a few
        rejections do not silence it."""
        if self.measures:
            high = wilson(rejected, accepted, CONFIDENCE).high if rejected else LEAST_BASELINE
            self.baseline = min(LARGEST_BASELINE, max(LEAST_BASELINE, high))

    def observe(self, step: Step) -> Alarm | None:
        names = ("checked", "rejected", "rejected_prompts")
        checked, rejected, prompts = (int(step.metrics.get(f"check/{name}", 0)) for name in names)
        self.cusum = self.cusum.after(
            step.number, prompts, checked - rejected + prompts, baseline=self.baseline, target=self.target
        )
        if self.cusum.since is None:
            self.rejected = self.checked = 0
            return None
        self.rejected, self.checked = self.rejected + rejected, self.checked + checked
        if self.cusum.value < self.limit:
            return None
        return Alarm(
            kind="disagreement",
            step=step.number,
            change_point=self.cusum.since,
            message=f"the independent check rejects {self.rejected} of the {self.checked} accepted answers that it saw "
            f"since step {self.cusum.since} ({self.rejected / self.checked:.0%}; "
            f"{self.baseline:.1%} is taken for normal)",
            evidence={
                "cusum": self.cusum.value,
                "limit": self.limit,
                "rejected": self.rejected,
                "checked": self.checked,
                "baseline": self.baseline,
                "target": self.target,
            },
        )

    def metrics(self) -> dict[str, float]:
        """The cumulative sum, `alarms/cusum`, which fires at alarms.cusum_limit."""
        return {"alarms/cusum": self.cusum.value}

    def state(self) -> dict[str, Any]:
        return {
            "value": self.cusum.value,
            "since": self.cusum.since,
            "baseline": self.baseline,
            "rejected": self.rejected,
            "checked": self.checked,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.cusum = Cusum(value=state["value"], since=state["since"])
        self.load_baseline(state)
        self.rejected, self.checked = state["rejected"], state["checked"]

    def load_baseline(self, state: Mapping[str, Any]) -> None:
        """Restore the baseline, unless a setting says what it is."""
        if self.measures:
            self.baseline = state["baseline"]
