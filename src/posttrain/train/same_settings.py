"""The warning of a resumed run whose settings differ from those that its checkpoint was trained with.

You may change the settings of a stopped run in its config.yaml, so a change is no error. But later results then follow
from two sets of settings, and config.yaml shows only one. So settings.json in the run's folder keeps every set of
settings, by the step after which it held:

    {"0": {"train.learning_rate": 1e-06, ...}, "40": {"train.learning_rate": 1e-05, ...}}

same_rewards.py warns of changed rewards and checks, and api.py of changes in `reward_model` that come too late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from posttrain.config import REWARD_MODEL, RunConfig, saved_tree
from posttrain.config.text import dotted, leaves, show
from posttrain.train.schedule import learning_rate_at

if TYPE_CHECKING:
    from posttrain.train.run import Run

FILE = "settings.json"
ELSEWHERE = ("rewards", "check", "output", REWARD_MODEL)
"""Settings that change no result, or that are reported elsewhere. The run that trains the reward model has a
settings.json of its own."""
OF_EARLIER_VERSIONS = {"data.hold_out": "rows"}
"""Settings of runs that do not name them, because their version had only this way."""
OF_THE_RATE = ("learning_rate", "steps", "schedule", "warmup_steps", "min_learning_rate_ratio")
"""Settings of `train` that the learning rate of a step follows from."""
SHOWN = 12


def put_on_file(run: Run) -> None:
    """Write settings.json at the start of a run, over the file of an earlier attempt."""
    run.store.record(FILE, {"0": facts_of(run.config)})


def point_out(run: Run) -> None:
    """Warn of settings changed since the checkpoint from which the run continues, and add the new ones to the file."""
    held = run.store.read_record(FILE)
    if not held or not all(step.isdecimal() and isinstance(held[step], dict) for step in held):  # an old version
        return
    before = OF_EARLIER_VERSIONS | held[max((step for step in held if int(step) < run.step), key=int, default="0")]
    now = facts_of(run.config)
    changed = changes(before, now)
    if not changed:
        return
    rates = rates_of(run, before)
    run.warn("settings", f"the settings changed after step {run.step}: {in_brief(changed)}{rates}")
    kept = {step: settings for step, settings in held.items() if int(step) < max(run.step, 1)}
    run.store.record(FILE, {**kept, str(run.step): now})


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """`train.steps = 2 (was 1)` for each setting that differs."""
    names = [name for name in {**before, **now} if name.partition(".")[0] not in ELSEWHERE]
    return [
        f"{name} = {show(now.get(name))} (was {show(before.get(name))})"
        for name in names
        if before.get(name) != now.get(name)
    ]


def in_brief(changed: Sequence[str]) -> str:
    """The first changes, and the number of the others."""
    more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
    return ", ".join(changed[:SHOWN]) + more


def rates_of(run: Run, before: dict[str, Any]) -> str:
    """The learning rates before and after a change of settings that moves the run to another place of its schedule.

    It says nothing if only `train.learning_rate` changed, nor if no step comes before or after the change."""
    now, step = run.config.train, run.step
    held = {name: before.get(f"train.{name}", getattr(now, name)) for name in OF_THE_RATE}
    was = now.model_copy(update=held)
    share_before, share_now = learning_rate_at(step + 1, was, 1.0), learning_rate_at(step + 1, now, 1.0)
    if not step or run.reached or share_before == share_now:
        return ""
    last, first = learning_rate_at(step, was), learning_rate_at(step + 1, now)
    return (
        f". This moves the schedule: the learning rate was {last:.3g} in step {step} and is {first:.3g} in step "
        f"{step + 1}, and the steps so far had other rates than in a run with these settings from its start"
    )


def facts_of(config: RunConfig) -> dict[str, Any]:
    """The settings as they are saved, by dotted name."""
    tree = {name: value for name, value in saved_tree(config).items() if name not in ELSEWHERE}
    return {dotted(path): value for path, value in leaves(tree)}
