"""All alarms of a run together: what they are shown, what they remember, and which checkpoints they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.config.sections import AlarmConfig
from posttrain.errors import ConfigError
from posttrain.watch.answers import answer_metrics
from posttrain.watch.bisection import Cause
from posttrain.watch.check import Checked, IndependentCheck, accepted_places, sample_of
from posttrain.watch.comparisons import comparisons
from posttrain.watch.course import Course
from posttrain.watch.disagreement import Disagreement
from posttrain.watch.heldout import HeldOutAlarms, first_look, held_out, movement
from posttrain.watch.kl import KLJump
from posttrain.watch.mismatch import Mismatch
from posttrain.watch.records import Alarm, Movement, Step, StepAlarm
from posttrain.watch.rounding import Level

if TYPE_CHECKING:
    import torch

    from posttrain.config import RunConfig
    from posttrain.experience.group import Group
    from posttrain.rewards.judge import Judgement
    from posttrain.store.checkpoint import Checkpoints
    from posttrain.types import Prompt

Examine = Callable[["Sequence[Group]", int, Level], Cause]
"""(groups, the version of the trainer, what rounding explains) -> why engines say something else of them."""
FULL_MARK = 1.0
MUCH_DISAGREEMENT, FEW = 0.2, 3
"""Share, and number, of accepted answers that the check may reject before training without a warning."""
MUCH_UNSCORED = 0.2
"""Share of a step's sample that the check may leave without a score before a warning."""


@dataclass(frozen=True, kw_only=True)
class Looked:
    """The findings about the answers of a step, after the update."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    columns: Mapping[str, list[float | None]] = field(default_factory=dict)
    """For the stored rollouts: check/<label>, one value per trained row."""
    judgements: Sequence[Judgement] = ()
    warning: str = ""
    """That the check fails, where it does."""


NOTHING_SEEN = Looked()


class Watch:
    """Looks at every step and every evaluation; each kind of alarm fires once."""

    def __init__(
        self,
        config: AlarmConfig,
        *,
        seed: int = 0,
        check: IndependentCheck | None = None,
        mismatch: Mismatch | None = None,
    ) -> None:
        """`mismatch` is watched whatever the run learns from."""
        self.config, self.seed, self.check = config, seed, check
        self.independent = check is not None
        """Are held-out answers scored by something else than the reward?"""
        self.accepted_at = FULL_MARK if config.accepted_at is None else config.accepted_at
        self.fired: list[Alarm] = []
        self.has_failed = False
        """Was it told that the check fails?"""
        self.reward = Course(config.reference_steps)
        self.heldout = HeldOutAlarms(config)
        self.disagreement = Disagreement.of(config) if config.enabled and check is not None else None
        self.step_alarms: dict[str, StepAlarm] = {}
        if config.enabled:
            self.step_alarms = {**comparisons(config), **KLJump.of(config)}
        if self.disagreement is not None:
            self.step_alarms["disagreement"] = self.disagreement
        self.mismatch = mismatch
        if mismatch is not None:
            self.step_alarms["mismatch"] = mismatch
        self.examine: Examine | None = None
        """Finds out why engines say something else than the trainer."""

    @staticmethod
    def of(
        config: RunConfig, check: IndependentCheck | None, prompts: Sequence[Prompt], precision: torch.dtype
    ) -> tuple[Watch, list[str]]:
        """And what the user should know about it. A check that needs a column which training prompts lack looks at
        held-out answers only; DataError where it has the column and cannot use what is in it."""
        notes: list[str] = []
        computed_twice = not config.rollout.keep_cache  # else what engines say is not of any one policy
        mismatch = None
        if config.alarms.enabled and computed_twice:
            mismatch = Mismatch.of(precision, temperature=config.sampling.temperature)
        if not config.algorithm.build().learns_from_rewards:
            return Watch(AlarmConfig(enabled=False), mismatch=mismatch), notes
        watch = Watch(config.alarms, seed=config.seed, check=check, mismatch=mismatch)
        if check is not None and config.alarms.enabled and config.alarms.check_sample:
            try:
                check.require(prompts, "training data")
            except ConfigError as error:
                notes.append(f"the check sees only held-out answers and none from training: {error.given}")
                watch.check = None
        return watch, notes

    # --- steps -------------------------------------------------------------------------------------------------------

    def before_update(self, groups: Sequence[Group], version: int) -> None:
        """What may be asked only as long as the weights are those of `version`, with which engines have drawn."""
        if self.mismatch is not None and self.examine is not None:
            self.mismatch.before_update(partial(self.examine, groups, version))

    def look(self, groups: Sequence[Group], step: int) -> Looked:
        """Measure the answers, and let the check see a sample of what the reward accepted."""
        if not self.config.enabled or not groups or groups[0].scores is None:
            return NOTHING_SEEN
        checked = self._ask(groups, step)
        metrics = answer_metrics(groups)
        if checked is None:
            return Looked(metrics=metrics)
        return Looked(
            metrics=metrics | checked.metrics(),
            columns=columns_of(checked, groups),
            judgements=checked.judgements,
            warning=self._failing(checked, step),
        )

    def _failing(self, checked: Checked, step: int) -> str:
        """A warning the first time that the check fails for much of what it is shown: it then sees nothing."""
        looked_at = checked.unscored + len(checked.agrees)
        if self.has_failed or checked.unscored <= MUCH_UNSCORED * looked_at:
            return ""
        self.has_failed = True
        cause = f"; the first error: {checked.failure}" if checked.failure else ""
        return f"step {step}: the check gave no score to {checked.unscored} of {looked_at} answers{cause}"

    def _ask(self, groups: Sequence[Group], step: int) -> Checked | None:
        if self.check is None or self.config.check_sample == 0:
            return None
        accepted = accepted_places(groups, self.accepted_at)
        chosen = sample_of(accepted, self.config.check_sample, seed=self.seed, step=step)
        return self.check.look_at(groups, chosen, accepted=len(accepted), accepts_at=self.config.check_accepts_at)

    def observe(self, number: int, metrics: Mapping[str, float]) -> tuple[list[Alarm], dict[str, float]]:
        """The alarms that fire at this step, and the state of the cumulative sum."""
        self.reward.add(metrics.get("reward", float("nan")))
        step = Step(number=number, metrics=metrics, reward=self.reward.movement(), heldout=self._proof(metrics))
        found = [alarm for one in self.step_alarms.values() if (alarm := one.observe(step)) is not None]
        asked = self.disagreement is not None and "check/checked" in metrics
        gauges = self.disagreement.metrics() if self.disagreement and asked else {}
        return self._new(found), gauges | (self.mismatch.metrics() if self.mismatch else {})

    def _proof(self, metrics: Mapping[str, float]) -> Movement:
        """How an independent score has moved: the held-out one, as far as evaluations tell. Between them, where the
        reward rose and the check agrees with what is accepted as much as ever, its score has risen with the reward."""
        moved = movement(self.heldout.found) if self.independent else "unknown"
        agrees = self.disagreement is not None and self.disagreement.cusum.since is None
        if moved == "unknown" and agrees and metrics.get("check/checked") and self.reward.movement() == "rose":
            return "rose"
        return moved

    def _new(self, alarms: Sequence[Alarm]) -> list[Alarm]:
        new = {alarm.kind: alarm for alarm in reversed(alarms) if alarm.kind not in {one.kind for one in self.fired}}
        self.fired += new.values()
        return list(new.values())

    # --- evaluations -------------------------------------------------------------------------------------------------

    def before_training(self, answers: Path) -> str | None:
        """The threshold of acceptance and the rate of disagreement, from the start model's held-out answers.

        Returns a warning where the two disagree so much already that a rise could not be told."""
        look = first_look(answers, accepted_at=self.config.accepted_at, check_accepts_at=self.config.check_accepts_at)
        if look is None:
            return None
        self.accepted_at = look.accepted_at
        if self.disagreement is not None:
            self.disagreement.calibrate(look.rejected, look.accepted)
        if not self.config.enabled or look.rejected <= MUCH_DISAGREEMENT * look.accepted or look.rejected < FEW:
            return None
        return (
            f"before training the check rejects {look.rejected} of the {look.accepted} held-out answers that the "
            "reward accepts: one of the two does not measure what you mean, or alarms.accepted_at is too low"
        )

    def evaluated(self, step: int, measured: Mapping[str, Any]) -> list[Alarm]:
        """The alarms that an evaluation of this step sets off (`measured` is the content of evaluation.json)."""
        found = held_out(step, measured, independent=self.independent) if self.config.enabled else None
        if found is None or self.heldout.has_seen(step):
            return []
        return self._new(self.heldout.observe(found, self.reward))

    # --- what stays --------------------------------------------------------------------------------------------------

    def needs(self, checkpoints: Checkpoints) -> set[int]:
        """Steps of the checkpoints from before each change; of one that is only suspected, too."""
        changes = [alarm.change_point for alarm in self.fired]
        if self.disagreement is not None and self.disagreement.cusum.since is not None:
            changes.append(self.disagreement.cusum.since)
        return {step for change in changes if (step := checkpoints.before(change)) is not None}

    def state(self) -> dict[str, Any]:
        return {
            "accepted_at": self.accepted_at,
            "has_failed": self.has_failed,
            "fired": [alarm.to_json() for alarm in self.fired],
            "reward": self.reward.state(),
            "heldout": self.heldout.state(),
            "alarms": {name: one.state() for name, one in self.step_alarms.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """An alarm whose setting was null when the state was saved starts afresh; one that is null now stays off."""
        self.accepted_at, self.has_failed = state["accepted_at"], state["has_failed"]
        self.fired = [Alarm(**fields) for fields in state["fired"]]
        self.reward.load_state(state["reward"])
        self.heldout.load_state(state["heldout"])
        for name in self.step_alarms.keys() & state["alarms"].keys():
            self.step_alarms[name].load_state(state["alarms"][name])


def columns_of(checked: Checked, groups: Sequence[Group]) -> dict[str, list[float | None]]:
    """One value per trained row, in the order of the batch: null where the check was not asked."""
    places = [(p, g) for p, group in enumerate(groups) for g in range(len(group.completions))]
    return {f"check/{label}": [found.get(place) for place in places] for label, found in checked.scores.items()}


def nothing_to_watch() -> Watch:
    """For a run that samples nothing, or learns from no reward."""
    return Watch(AlarmConfig(enabled=False))
