"""All alarms of a run together: what they are shown, what they remember, and which checkpoints they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.errors import ConfigError
from posttrain.train.alarms.check import Checked, IndependentCheck, accepted_places, sample_of
from posttrain.train.alarms.disagreement import Disagreement
from posttrain.train.alarms.heldout import first_look
from posttrain.train.alarms.records import Alarm, Step, StepAlarm

if TYPE_CHECKING:
    from posttrain.config import RunConfig
    from posttrain.config_alarms import AlarmConfig
    from posttrain.train.checkpoint import Checkpoints
    from posttrain.train.rollouts import Judged, Rollout
    from posttrain.types import Prompt

FULL_MARK = 1.0


@dataclass(frozen=True, kw_only=True)
class Looked:
    """What was found out about the answers of a step, after the update."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    columns: Mapping[str, list[float | None]] = field(default_factory=dict)
    """For the stored rollouts: check/<label>, one value per trained row."""


class Watch:
    """Looks at every step and every evaluation; each kind of alarm fires once."""

    def __init__(self, config: AlarmConfig, *, seed: int = 0, check: IndependentCheck | None = None) -> None:
        self.config, self.seed, self.check = config, seed, check
        self.accepted_at = FULL_MARK if config.accepted_at is None else config.accepted_at
        self.fired: list[Alarm] = []
        self.disagreement = Disagreement.of(config) if config.enabled and check is not None else []
        self.step_alarms: dict[str, StepAlarm] = {type(a).__name__: a for a in self.disagreement}

    @staticmethod
    def of(config: RunConfig, check: IndependentCheck | None, prompts: Sequence[Prompt]) -> tuple[Watch, list[str]]:
        """And what the user should know about it. A check that needs a column which training prompts lack looks at
        held-out answers only; DataError where it has the column and cannot use what is in it."""
        notes: list[str] = []
        if check is not None and config.alarms.enabled and config.alarms.check_sample:
            try:
                check.require(prompts, "training data")
            except ConfigError as error:
                notes.append(f"the check sees held-out answers only, and none of training: {error.given}")
                check = None
        return Watch(config.alarms, seed=config.seed, check=check), notes

    def look(self, rollout: Rollout | None, step: int) -> Looked:
        """Let the check see a sample of what the reward accepted, and measure the answers."""
        if not self.config.enabled or rollout is None or rollout.trained.scores is None:
            return Looked()
        judged = rollout.trained
        checked = self._ask(judged, step)
        return Looked(
            metrics=checked.metrics() if checked else {}, columns=columns_of(checked, judged) if checked else {}
        )

    def _ask(self, judged: Judged, step: int) -> Checked | None:
        if self.check is None or self.config.check_sample == 0:
            return None
        accepted = accepted_places(judged, self.accepted_at)
        chosen = sample_of(accepted, self.config.check_sample, seed=self.seed, step=step)
        return self.check.look_at(judged, chosen, accepted=len(accepted), accepts_at=self.config.check_accepts_at)

    def observe(self, number: int, metrics: Mapping[str, float]) -> tuple[list[Alarm], dict[str, float]]:
        """What fires at this step, and where the alarms stand."""
        step = Step(number=number, metrics=metrics)
        found = [alarm for one in self.step_alarms.values() if (alarm := one.observe(step)) is not None]
        gauges = {name: value for one in self.disagreement for name, value in one.metrics().items()}
        return self._new(found), gauges

    def before_training(self, answers: Path) -> None:
        """What counts as accepted, and how often the check disagrees, by the held-out answers of the start model."""
        look = first_look(answers, accepted_at=self.config.accepted_at, check_accepts_at=self.config.check_accepts_at)
        if look is None:
            return
        self.accepted_at = look.accepted_at
        for one in self.disagreement:
            one.calibrate(look.rejected, look.accepted)

    def _new(self, alarms: list[Alarm]) -> list[Alarm]:
        known = {alarm.kind for alarm in self.fired}
        new = [alarm for alarm in alarms if alarm.kind not in known]
        self.fired += new
        return new

    def needs(self, checkpoints: Checkpoints) -> set[int]:
        """Steps of the checkpoints from before each change; of one that is only suspected, too."""
        changes = [alarm.change_point for alarm in self.fired]
        changes += [one.cusum.since for one in self.disagreement if one.cusum.since is not None]
        return {step for change in changes if (step := checkpoints.before(change)) is not None}

    def state(self) -> dict[str, Any]:
        return {
            "accepted_at": self.accepted_at,
            "fired": [alarm.to_json() for alarm in self.fired],
            "alarms": {name: one.state() for name, one in self.step_alarms.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.accepted_at = state["accepted_at"]
        self.fired = [Alarm(**fields) for fields in state["fired"]]
        for name, saved in state["alarms"].items():
            if name in self.step_alarms:  # its setting may be null since
                self.step_alarms[name].load_state(saved)


def columns_of(checked: Checked, judged: Judged) -> dict[str, list[float | None]]:
    """One value per trained row, in the order of the batch: null where the check was not asked."""
    places = [(p, g) for p, group in enumerate(judged.groups) for g in range(len(group))]
    return {f"check/{label}": [found.get(place) for place in places] for label, found in checked.scores.items()}


def nothing_to_watch() -> Watch:
    """For a run that samples nothing, or learns from no reward."""
    from posttrain.config_alarms import AlarmConfig

    return Watch(AlarmConfig(enabled=False))
