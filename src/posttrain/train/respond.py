"""The response to an alarm: save the answers it points to and keep a checkpoint from before it.

Then the run continues, waits for a person, or ends, as `alarms.on_alarm` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from posttrain.errors import AlarmStop
from posttrain.shown import shown
from posttrain.watch.evidence import suspicious

if TYPE_CHECKING:
    from posttrain.train.run import Run
    from posttrain.watch.records import Alarm


ABOUT_NO_ANSWER = ("mismatch",)
"""Alarms that are not about the content of answers, so that no answer shows their reason."""


def respond(run: Run, alarms: Sequence[Alarm], *, is_over: bool = False) -> None:
    """Save the evidence for each alarm and report it. Raises `AlarmStop` if the run must not continue.

    A run that `is_over` cannot pause, but on_alarm = stop still ends it with the error. Alarms that were reported
    before the run was resumed are not reported again.
    """
    if not alarms:
        return
    for alarm in untold(run, alarms):
        tell(run, alarm)
    if run.config.alarms.on_alarm == "pause" and not is_over:
        run.save(required=True)
        raise AlarmStop(
            given=f"paused after step {run.step}: {in_words(alarms)}",
            allowed=f"{wanted(alarms)}; alarms.on_alarm = warn lets the run continue",
            fix=f"{advice(run, alarms)} `posttrain resume {shown(run.folder)}` treats these alarms as seen and "
            "continues.",
        )
    if run.config.alarms.on_alarm == "stop":
        raise AlarmStop(
            given=f"stopped after step {run.step}: {in_words(alarms)}",
            allowed=f"{wanted(alarms)}; alarms.on_alarm = warn lets the run continue",
            fix=advice(run, alarms, mend=True),
        )


def untold(run: Run, alarms: Sequence[Alarm]) -> list[Alarm]:
    """The alarms that are not in events.jsonl yet."""
    told = {(event.get("alarm"), event.get("step")) for event in run.store.read_events("alarm")}
    return [alarm for alarm in alarms if (alarm.kind, alarm.step) not in told]


def tell(run: Run, alarm: Alarm) -> None:
    """Record the alarm with the suspicious answers and the last checkpoint before it, and show it."""
    path = None
    if alarm.kind not in ABOUT_NO_ANSWER:
        answers = suspicious(run.folder, alarm, run.config.alarms.check_accepts_at)
        path = run.store.suspicious(alarm.step, alarm.kind, answers)
    before = run.checkpoints.before(alarm.change_point)
    model = "the model that the run started with" if before is None else f"checkpoints/step-{before:06d}"
    run.checkpoints.pinned = run.watch.needs(run.checkpoints)
    advised = f". {alarm.fix.rstrip('.')}" if alarm.fix else ""
    message = f"{alarm.message}{advised}. Last model before step {alarm.change_point}: {model}"
    run.store.event(
        "alarm",
        message,
        step=alarm.step,
        alarm=alarm.kind,
        change_point=alarm.change_point,
        evidence=dict(alarm.evidence),
        checkpoint=before,
        answers=str(path.relative_to(run.folder)) if path else None,
    )
    shown = f". Answers in {path}" if path else ""
    run.view.event("alarm", f"{alarm.kind.replace('_', ' ')}: {message}{shown}")


def wanted(alarms: Sequence[Alarm]) -> str:
    if all(alarm.kind in ABOUT_NO_ANSWER for alarm in alarms):
        return "engines whose log-probabilities agree with the trainer's"
    return "a reward that pays for the behaviour you mean"


def advice(run: Run, alarms: Sequence[Alarm], *, mend: bool = False) -> str:
    """The alarms' own advice, and advice about the reward."""
    known = [alarm.fix for alarm in alarms if alarm.fix]
    if all(alarm.kind in ABOUT_NO_ANSWER for alarm in alarms):
        return " ".join(known)
    audit = " and fix the reward (`posttrain reward audit` finds how it can be gamed)" if mend else ""
    return " ".join([*known, f"Read {run.folder}/alarms{audit}."])


def in_words(alarms: Sequence[Alarm]) -> str:
    return "; ".join(alarm.message for alarm in alarms)
