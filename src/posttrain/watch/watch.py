"""All alarms of a run together: their inputs, their state, and the checkpoints that they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.config.sections import AlarmConfig
from posttrain.errors import ConfigError
from posttrain.files import Damaged
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
"""(groups, the trainer's version, the level that rounding explains) -> why engines and trainer disagree."""
FULL_MARK = 1.0
MUCH_DISAGREEMENT, FEW = 0.2, 3
"""Share and number of accepted answers that the check may reject before training without a warning."""
JUDGED_BY = ("enabled", "accepted_at", "check_accepts_at", "baseline_disagreement", "disagreement_ratio")
"""Settings that say which answers are accepted and rejected, and what the cumulative sum of disagreement counts."""
MUCH_UNSCORED = 0.2
"""Share of a step's sample that the check may leave without a score before a warning."""


@dataclass(frozen=True, kw_only=True)
class Looked:
    """The findings about the answers of a step, after the update."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    columns: Mapping[str, list[float | None]] = field(default_factory=dict)
    """Columns check/<label> for the stored rollouts, with one value per trained row."""
    judgements: Sequence[Judgement] = ()
    warning: str = ""
    """A warning if the check fails; empty otherwise."""


NOTHING_SEEN = Looked()


class Watch:
    """Observes every step and every evaluation. Each kind of alarm fires once."""

    def __init__(
        self,
        config: AlarmConfig,
        *,
        seed: int = 0,
        check: IndependentCheck | None = None,
        mismatch: Mismatch | None = None,
    ) -> None:
        """`mismatch` is observed whether or not the run learns from rewards."""
        self.config, self.seed, self.check = config, seed, check
        self.independent = check is not None
        """Does an independent check score the held-out answers?"""
        self.accepted_at = FULL_MARK if config.accepted_at is None else config.accepted_at
        self.fired: list[Alarm] = []
        self.silent: set[str] = set()
        """Kinds of the alarms that have fired, except those whose settings have changed since."""
        self.has_failed = False
        """Has the user been warned that the check fails?"""
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
        """Finds out why engines and trainer disagree."""

    @staticmethod
    def of(
        config: RunConfig, check: IndependentCheck | None, prompts: Sequence[Prompt], precision: torch.dtype
    ) -> tuple[Watch, list[str]]:
        """The watch of a run, and notes for the user.

        If training prompts lack a column that the check needs, it sees only held-out answers. Raises DataError if they
        have the column but its content is unusable."""
        notes: list[str] = []
        computed_twice = not config.rollout.keep_cache  # with a kept cache, engine numbers belong to no single policy
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
        """Examine a suspected mismatch while the trainer still has the weights of `version` that drew the groups."""
        if self.mismatch is not None and self.examine is not None:
            self.mismatch.before_update(partial(self.examine, groups, version))

    def look(self, groups: Sequence[Group], step: int) -> Looked:
        """Measure the answers, and run the check on a sample of the accepted ones."""
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
        """A warning the first time that the check fails for many of its answers, because its alarm is then blind."""
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
        """How an independent score has moved: the held-out score, if evaluations show it.

        If they do not, but the reward rose and the check disagrees no more than before, it counts as risen."""
        moved = movement(self.heldout.found) if self.independent else "unknown"
        agrees = self.disagreement is not None and self.disagreement.cusum.since is None
        if moved == "unknown" and agrees and metrics.get("check/checked") and self.reward.movement() == "rose":
            return "rose"
        return moved

    def _new(self, alarms: Sequence[Alarm]) -> list[Alarm]:
        new = {alarm.kind: alarm for alarm in reversed(alarms) if alarm.kind not in self.silent}
        self.fired += new.values()
        self.silent |= new.keys()
        return list(new.values())

    # --- evaluations -------------------------------------------------------------------------------------------------

    def before_training(self, answers: Path) -> str | None:
        """Set the acceptance threshold and the baseline of disagreement from the start model's held-out answers.

        Returns a warning if reward and check already disagree so much that a rise could not be seen."""
        config = self.config
        try:
            look = first_look(answers, accepted_at=config.accepted_at, check_accepts_at=config.check_accepts_at)
        except Damaged as damage:
            return self._without_answers(damage)
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

    def _without_answers(self, damage: Damaged) -> str | None:
        """A warning that nothing was worked out before training; None without a check, which alone needs it."""
        if not self.independent or not self.config.enabled:
            return None
        normal = f", and {self.disagreement.baseline:.1%} of rejections for normal" if self.disagreement else ""
        return (
            f"the held-out answers before training are lost ({damage}), so the alarms take a reward of "
            f"{self.accepted_at:g} for accepted{normal}. Set alarms.accepted_at and alarms.baseline_disagreement if "
            "this is wrong"
        )

    def evaluated(self, step: int, measured: Mapping[str, Any]) -> list[Alarm]:
        """The alarms that an evaluation of this step sets off; `measured` is an entry of evaluation.json."""
        found = held_out(step, measured, independent=self.independent) if self.config.enabled else None
        if found is None or self.heldout.has_seen(step):
            return []
        return self._new(self.heldout.observe(found, self.reward))

    # --- state -------------------------------------------------------------------------------------------------------

    def needs(self, checkpoints: Checkpoints) -> set[int]:
        """Steps of the checkpoints from before each change, including a change that is only suspected."""
        changes = [alarm.change_point for alarm in self.fired]
        if self.disagreement is not None and self.disagreement.cusum.since is not None:
            changes.append(self.disagreement.cusum.since)
        return {step for change in changes if (step := checkpoints.before(change)) is not None}

    def state(self) -> dict[str, Any]:
        return {
            "settings": {name: getattr(self.config, name) for name in JUDGED_BY},
            "accepted_at": self.accepted_at,
            "has_failed": self.has_failed,
            "fired": [alarm.to_json() for alarm in self.fired],
            "silent": sorted(self.silent),
            "reward": self.reward.state(),
            "heldout": self.heldout.state(),
            "alarms": {name: one.state() for name, one in self.step_alarms.items()},
        }

    def load_state(self, state: Mapping[str, Any], answers: Path | None = None) -> str | None:
        """Restore the alarms. One whose setting was null at that time starts fresh; one that is null now stays off.

        If settings of `JUDGED_BY` have changed since, the present ones count: the sum of disagreement starts at 0, and
        what was worked out before training is worked out again from `answers`. Returns a warning as `before_training`
        does."""
        self.has_failed = state["has_failed"]
        self.fired = [Alarm(**fields) for fields in state["fired"]]
        self.silent = set(state.get("silent", (alarm.kind for alarm in self.fired)))  # earlier versions: all that fired
        self.reward.load_state(state["reward"])
        self.heldout.load_state(state["heldout"])
        changed = self._changed_since(state)
        self.silent -= {"disagreement"} if changed else set()
        if self.config.accepted_at is None and "accepted_at" not in changed:
            self.accepted_at = state["accepted_at"]
        for name in self.step_alarms.keys() & state["alarms"].keys():
            if name != "disagreement" or not changed:
                self.step_alarms[name].load_state(state["alarms"][name])
            elif self.disagreement is not None and "baseline_disagreement" not in changed:
                self.disagreement.load_baseline(state["alarms"][name])
        return self.before_training(answers) if changed and answers is not None else None

    def _changed_since(self, state: Mapping[str, Any]) -> set[str]:
        """The settings of `JUDGED_BY` that were others when `state` was saved."""
        now = {name: getattr(self.config, name) for name in JUDGED_BY}
        then = state.get("settings")
        if then is None:  # earlier versions kept what they used, which is the setting unless it is null
            used = {"accepted_at": state["accepted_at"]}
            used |= {"baseline_disagreement": state["alarms"].get("disagreement", {}).get("baseline")}
            then = now | {name: value for name, value in used.items() if None not in (value, now[name])}
        return {name for name in JUDGED_BY if then[name] != now[name]}


def columns_of(checked: Checked, groups: Sequence[Group]) -> dict[str, list[float | None]]:
    """Columns with one value per trained row, in the order of the batch; None for rows that the check did not see."""
    places = [(p, g) for p, group in enumerate(groups) for g in range(len(group.completions))]
    return {f"check/{label}": [found.get(place) for place in places] for label, found in checked.scores.items()}


def nothing_to_watch() -> Watch:
    """A watch without alarms, for a run that samples nothing."""
    return Watch(AlarmConfig(enabled=False))
