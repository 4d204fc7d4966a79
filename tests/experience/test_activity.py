"""Engine activity in the timeline, in simulated runs with faults of every kind."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from tests.timelines import events_of, instants_of, spans_of

from posttrain.controller.controller import Controller
from posttrain.controller.faults import FAULTS, Faults
from posttrain.controller.messages import Dismiss, End, Limits, Lost, Published, Restart, WaitKind
from posttrain.controller.simulate import Simulated, simulate
from posttrain.controller.workload import Workload
from posttrain.experience.activity import Activity
from posttrain.store.timeline import FILE, Timeline

LIMITS = Limits(prompts_per_step=3, group_size=2, last_version=8, run_ahead=1, max_staleness=4)
DEADLINES: dict[WaitKind, float] = dict.fromkeys(get_args(WaitKind), 3.0)
WORKLOAD = Workload(engines=2, slots=4, seconds_per_token=0.01, mean_tokens=40, deadlines=DEADLINES)


def seen(run: Simulated, folder: Path, limits: Limits = LIMITS) -> float:
    """Write the timeline of a simulated run; return the share of time in which its engines drew nothing."""
    now, timeline = [0.0], Timeline()
    timeline.open(folder)
    activity = Activity(timeline, clock=lambda: now[0])
    controller = Controller(limits, engines=[f"engine-{number}" for number in range(WORKLOAD.engines)])
    for now[0], event, commands in run.history:
        assert controller.handle(event) == commands
        activity.see(event, commands, controller)
    idle = activity.idle()
    timeline.close()
    return idle


@pytest.mark.slow
def test_an_engine_does_one_thing_at_a_time_and_no_publication_or_loss_is_missing(tmp_path):
    all_found = Counter[str]()
    for seed in range(40):
        folder = tmp_path / str(seed)
        folder.mkdir()
        faults = Faults(number=4, within=10.0, kinds=tuple(name for name in FAULTS if name != "run killed"))
        run = simulate(LIMITS, WORKLOAD, seed=seed, faults=faults, history=True)
        seen(run, folder)
        events = events_of(folder / FILE)
        spans = [span for span in spans_of(events) if span.track.startswith("engine")]
        assert all(span.depth == 0 and span.begin <= span.end for span in spans)
        found = [name for _, name, _ in instants_of(events)]
        commands = [command for _, _, commands in run.history for command in commands]
        assert found.count("published") == sum(isinstance(event, Published) for _, event, _ in run.history)
        assert found.count("lost") == sum(isinstance(command, Restart) for command in commands)
        assert found.count("lost for good") == sum(isinstance(command, Dismiss) for command in commands)
        all_found.update(found)
    assert all_found["lost"] > 20
    assert all_found["published"] > 200


@pytest.mark.slow
def test_an_engine_that_is_ended_for_a_step_is_lost_once_and_sleeps_are_seen(tmp_path):
    limits, found, lost = replace(LIMITS, run_ahead=0, max_staleness=0, in_turns=True), Counter[str](), 0
    for seed in range(20):
        folder = tmp_path / str(seed)
        folder.mkdir()
        faults = Faults(number=4, within=10.0, kinds=("sleep fails", "engine killed"))
        run = simulate(limits, replace(WORKLOAD, sleep_seconds=0.1), seed=seed, faults=faults, history=True)
        seen(run, folder, limits)
        events = events_of(folder / FILE)
        found.update(name for _, name, _ in instants_of(events))
        found.update(span.name for span in spans_of(events))
        commands = [command for _, _, commands in run.history for command in commands]
        ended = sum(isinstance(command, End) for command in commands)
        assert ended == 0 or any(isinstance(event, Lost) for _, event, _ in run.history)
        lost += sum(isinstance(event, Lost) for _, event, _ in run.history)
        lost -= sum(isinstance(command, Dismiss) for command in commands)
    assert found["asleep"] > 100
    assert found["lost"] == lost > 20


def test_the_idle_share_is_the_simulators_own(tmp_path):
    run = simulate(LIMITS, WORKLOAD, history=True)
    idle = seen(run, tmp_path)
    assert idle == pytest.approx(run.engines_idle, abs=0.02)
    assert 0.05 < idle < 0.95
