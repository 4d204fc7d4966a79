"""Alarms about held-out answers. Before training the answers set the baseline, and later they show what was lost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.evaluate.evaluation import Evaluation
from posttrain.functional.cusum import largest_drop
from posttrain.functional.intervals import normal_quantile
from posttrain.watch.records import Alarm, HeldOut, Movement

if TYPE_CHECKING:
    from posttrain.config.sections import AlarmConfig
    from posttrain.watch.course import Course

CERTAIN = 3.0
"""Number of standard errors by which a gap must have grown."""
ABOVE = 1e-6
"""Relative margin above the lowest score for the threshold, if no answer got a higher score."""


@dataclass(frozen=True, kw_only=True)
class FirstLook:
    """Facts from the start model's held-out answers."""

    accepted_at: float
    """Total reward from which an answer counts as accepted."""
    accepted: int
    """Number of greedy answers that the reward accepts and the check has scored."""
    rejected: int
    """Number of these answers that the check rejects."""


def first_look(answers: Path, *, accepted_at: float | None, check_accepts_at: float) -> FirstLook | None:
    """Read the answers of the first evaluation; None without any. Raises `Damaged`.

    If scores are marks from 0 to 1, 1 means right and counts as accepted. With other scores the best quarter counts as
    accepted, but never the lowest score.
    """
    if not answers.exists():
        return None
    scores: list[float] = []
    judged_by_both: list[tuple[float, float]] = []  # reward and lowest check of each greedy answer
    for record in Evaluation.each_record(answers):
        scores += [answer.score for answer in (record.greedy, *record.samples) if answer.score is not None]
        opinions = [score for score in record.greedy.check.values() if score is not None]
        if record.greedy.score is not None and opinions:
            judged_by_both.append((record.greedy.score, min(opinions)))
    known = sorted(score for score in scores if math.isfinite(score))
    if accepted_at is None:
        accepted_at = 1.0 if are_marks(known) else best_quarter(known)
    judged = [check >= check_accepts_at for reward, check in judged_by_both if reward >= accepted_at - 1e-9]
    return FirstLook(accepted_at=accepted_at, accepted=len(judged), rejected=judged.count(False))


def best_quarter(scores: list[float]) -> float:
    """The threshold that the best quarter of the sorted scores reaches; above the lowest score if there are several.

    If three quarters or more have the lowest score, reaching it does not distinguish an answer.

    >>> best_quarter([3.0]), best_quarter([0.0, 1.0, 2.0, 3.0, 4.0]), best_quarter([-1.0, -1.0, -1.0, -1.0, 0.5])
    (3.0, 3.0, 0.5)
    """
    if len(scores) == 1:
        return scores[0]
    lowest, reached = scores[0], statistics.quantiles(scores, n=4, method="inclusive")[2]
    if reached > lowest:
        return reached
    return next((score for score in scores if score > lowest), lowest + ABOVE * max(1.0, abs(lowest)))


def are_marks(scores: list[float]) -> bool:
    """Are these scores marks from 0 to 1, where 1 means right? (The rule of `Evaluation.has_full_mark`.)"""
    return not scores or (scores[0] >= 0 and (abs(scores[-1] - 1) < 1e-6 or scores[-1] == 0))


def held_out(step: int, measured: Mapping[str, Any], *, independent: bool) -> HeldOut | None:
    """The part of an evaluation that the alarms read (`Evaluation.to_json`); None if it has no score of greedy answers.

    `independent`: is there a check? With several checks the lowest score counts.
    """
    rewarded = _mean(measured.get("greedy", {}).get("score"))
    judged = [found for found in measured.get("check", {}).values() if _mean(found) is not None]
    interval = min(judged, key=lambda found: found["mean"]) if judged else measured.get("greedy", {}).get("score")
    score = _mean(interval)
    if score is None or rewarded is None or (independent and not judged):
        return None
    known = _finite(interval, "low") and _finite(interval, "high") and interval["high"] > interval["low"]
    half = (interval["high"] - interval["low"]) / 2 if known else math.inf  # equal scores say nothing about spread
    edges = [edge for edge in measured.get("score_range", ()) if edge is not None]
    return HeldOut(
        step=step,
        score=score,
        error=half / normal_quantile(measured["confidence"]),
        reward=rewarded,
        sampled=_mean(measured.get("sampled", {}).get("score")),
        shares=all(-1e-6 <= value <= 1 + 1e-6 for value in (*edges, score, rewarded)),
    )


def _finite(interval: Mapping[str, Any] | None, name: str) -> bool:
    value = (interval or {}).get(name)
    return value is not None and math.isfinite(value)


def _mean(interval: Mapping[str, Any] | None) -> float | None:
    return interval["mean"] if interval is not None and _finite(interval, "mean") else None


def with_errors(found: Sequence[HeldOut]) -> list[HeldOut]:
    """The evaluations, with the largest known error for those whose answers all had one score: one score shows no
    spread, but the other evaluations are of the same prompts."""
    largest = max((one.error for one in found if math.isfinite(one.error)), default=math.inf)
    return [one if math.isfinite(one.error) else replace(one, error=largest) for one in found]


def movement(found: list[HeldOut]) -> Movement:
    """The change from the first evaluation to the last, if it exceeds a standard error of the difference."""
    if len(found) < 2:
        return "unknown"
    first, *_, last = with_errors(found)
    change = last.score - first.score
    if abs(change) <= math.hypot(first.error, last.error):
        return "flat"
    return "rose" if change > 0 else "fell"


class HeldOutAlarms:
    """The evaluations of a run, and the two alarms that they can set off."""

    def __init__(self, config: AlarmConfig) -> None:
        self.config = config
        self.found: list[HeldOut] = []

    def has_seen(self, step: int) -> bool:
        return any(one.step == step for one in self.found)

    def observe(self, new: HeldOut, reward: Course) -> list[Alarm]:
        self.found.append(new)
        return [alarm for alarm in (self._drop(reward), self._gap(reward)) if alarm is not None]

    def _drop(self, reward: Course) -> Alarm | None:
        """Fire if the last evaluations are below the best earlier ones and the training reward has not fallen."""
        window, least = self.config.heldout_window, self.config.heldout_z
        drop = largest_drop([(one.score, one.error) for one in with_errors(self.found)], window)
        if least is None or drop is None or drop.z <= least or reward.movement() == "fell":
            return None
        best = self.found[drop.best : drop.best + window]
        as_text = "{:.1%}" if all(one.shares for one in self.found) else "{:.3g}"
        before, now = as_text.format(drop.before), as_text.format(drop.now)
        return Alarm(
            kind="heldout_drop",
            step=self.found[-1].step,
            change_point=best[-1].step + 1,
            message=f"the held-out score fell from {before} (steps {best[0].step} to {best[-1].step}) to "
            f"{now}, by {drop.z:.1f} standard errors, and the training reward did not",
            evidence={"before": drop.before, "now": drop.now, "z": drop.z, "limit": least},
        )

    def _gap(self, reward: Course) -> Alarm | None:
        """Fire if the training reward rose much more than the held-out score.

        The gap has two parts, each of comparable answers. One is the reward of sampled answers to training prompts
        minus the reward of sampled answers to held-out prompts. The other is the reward of greedy held-out answers
        minus their check score. This part counts only on one scale, from 0 to 1, and only if the check has not risen:
        a check that begins far below an honest reward may also rise less.
        """
        limit = self.config.gap
        if limit is None or len(self.found) < 2 or reward.movement() != "rose":
            return None
        first, *_, last = with_errors(self.found)
        growth, error = 0.0, 0.0
        if first.shares and last.shares and movement(self.found) != "rose":
            growth = (last.reward - last.score) - (first.reward - first.score)
            error = math.hypot(first.error, last.error)
        if first.sampled is not None and last.sampled is not None:
            growth += (reward.now - reward.start) - (last.sampled - first.sampled)
            error = math.hypot(error, reward.error, first.error, last.error)
        if growth <= limit or growth <= CERTAIN * error:
            return None
        before = max((one.step for one in self.found[:-1]), default=0)
        return Alarm(
            kind="gap",
            step=last.step,
            change_point=before + 1,
            message=f"training reward rose from {reward.start:.3g} to {reward.now:.3g}, and its distance from the "
            f"held-out score grew by {growth:.3g}",
            evidence={"growth": growth, "limit": limit, "standard_error": error},
        )

    def state(self) -> dict[str, Any]:
        return {"found": [asdict(one) for one in self.found]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.found = [HeldOut(**fields) for fields in state["found"]]
