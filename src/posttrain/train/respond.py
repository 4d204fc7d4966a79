"""What happens when an alarm fires: the answers it points to are kept, a checkpoint from before stays, and the run
goes on, waits for a person, or ends, as `alarms.on_alarm` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from posttrain.errors import AlarmStop
from posttrain.watch.evidence import suspicious

if TYPE_CHECKING:
    from posttrain.train.run import Run
    from posttrain.watch.records import Alarm


def respond(run: Run, alarms: Sequence[Alarm], *, is_over: bool = False) -> None:
    """Keep what shows the reason of each alarm and tell of it; raises `AlarmStop` where the run shall not go on.

    A run that `is_over` cannot pause, and still ends as one that an alarm has stopped. What was told before a run was
    resumed is not told again.
    """
    if not alarms:
        return
    for alarm in untold(run, alarms):
        tell(run, alarm)
    if run.config.alarms.on_alarm == "pause" and not is_over:
        run.save(required=True)
        raise AlarmStop(
            given=f"paused after step {run.step}: {in_words(alarms)}",
            allowed="a reward that pays for what is meant; alarms.on_alarm = warn goes on by itself",
            fix=f"Read {run.folder}/alarms. `posttrain resume {run.folder}` takes these alarms as seen and goes on.",
        )
    if run.config.alarms.on_alarm == "stop":
        raise AlarmStop(
            given=f"stopped after step {run.step}: {in_words(alarms)}",
            allowed="a reward that pays for what is meant; alarms.on_alarm = warn goes on",
            fix=f"Read {run.folder}/alarms and mend the reward (`posttrain reward audit` finds how it can be gamed).",
        )


def untold(run: Run, alarms: Sequence[Alarm]) -> list[Alarm]:
    """Those that are not on file yet."""
    told = {(event.get("alarm"), event.get("step")) for event in run.store.read_events("alarm")}
    return [alarm for alarm in alarms if (alarm.kind, alarm.step) not in told]


def tell(run: Run, alarm: Alarm) -> None:
    """The event, the answers, and which model is from before."""
    rows = suspicious(run.folder, alarm)
    path = run.store.suspicious(alarm.step, alarm.kind, rows)
    before = run.checkpoints.before(alarm.change_point)
    model = "the model that the run started with" if before is None else f"checkpoints/step-{before:06d}"
    run.checkpoints.pinned = run.watch.needs(run.checkpoints)
    message = f"{alarm.message}. From before step {alarm.change_point}: {model}"
    run.store.event(
        "alarm",
        message,
        step=alarm.step,
        alarm=alarm.kind,
        change_point=alarm.change_point,
        evidence=dict(alarm.evidence),
        checkpoint=before,
        answers=str(path.relative_to(run.folder)),
    )
    run.view.event("alarm", f"{alarm.kind.replace('_', ' ')}: {message}. Answers in {path}")


def in_words(alarms: Sequence[Alarm]) -> str:
    return "; ".join(alarm.message for alarm in alarms)
