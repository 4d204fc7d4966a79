"""The lead that a run measures for itself is the one that the simulator finds with the true times."""

from __future__ import annotations

import threading

import pytest

from posttrain.controller.messages import Lead, Limits
from posttrain.controller.simulate import least_run_ahead, simulate
from posttrain.controller.workload import Workload
from posttrain.experience.pace import MEASURED_AT, Pace

LIMITS = Limits(prompts_per_step=6, group_size=4, last_version=12, run_ahead=1, max_staleness=8)
TIMES = {
    "sampling takes all the time": ({"seconds_per_token": 0.02, "train_seconds": 0.1}, 3),
    "a long answer holds up a step": ({"seconds_per_token": 0.002, "train_seconds": 0.5}, 1),
    "training takes all the time": ({"seconds_per_token": 0.0001, "train_seconds": 2.0}, 1),
}
"""Each with the least lead that has to come out."""


def seen(workload: Workload, until: int) -> tuple[Pace, list[Lead]]:
    """A pace that has seen a simulated run up to a version, and what it chose."""
    chosen, done, now = list[Lead](), threading.Event(), [0.0]
    pace = Pace(LIMITS, workload.engines, lambda lead, why: (chosen.append(lead), done.set()), clock=lambda: now[0])
    for moment, event, commands in simulate(LIMITS, workload, history=True).history:
        now[0] = moment
        pace.see(event, commands)
        if getattr(event, "version", None) == until and type(event).__name__ == "Trained":
            break
    for thread in threading.enumerate():
        if thread.name == "choosing a lead":
            thread.join()
    return pace, chosen


@pytest.mark.parametrize("name", TIMES)
def test_the_lead_is_that_of_the_true_times(name):
    changes, least = TIMES[name]
    workload = Workload(slots=1 << 20, mean_tokens=100, sigma=1.0, reward_seconds=0.05, publish_seconds=0.02, **changes)
    pace, chosen = seen(workload, MEASURED_AT[0])
    found = pace.workload()
    assert found.seconds_per_token == pytest.approx(workload.seconds_per_token, rel=0.1)
    assert found.train_seconds == pytest.approx(workload.train_seconds)
    assert found.reward_seconds == pytest.approx(workload.reward_seconds)
    assert found.publish_seconds == pytest.approx(workload.publish_seconds)
    assert found.sigma == pytest.approx(1.0, abs=0.2)
    assert abs(pace.least() - least_run_ahead(LIMITS, workload)) <= 1
    assert pace.least() >= least
    assert chosen == ([Lead(pace.least())] if pace.least() != 1 else [])


def test_nothing_is_chosen_before_anything_is_typical():
    workload = Workload(slots=1 << 20, mean_tokens=100, sigma=1.0, seconds_per_token=0.02, train_seconds=0.1)
    assert seen(workload, MEASURED_AT[0] - 1)[1] == []
