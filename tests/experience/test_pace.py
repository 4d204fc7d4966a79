"""The lead that a run measures for itself is the one that the simulator finds with the true times."""

from __future__ import annotations

import threading

import pytest

from posttrain.controller.messages import Asked, Drew, Ended, GiveUp, Lead, Limits, Lost, Row, Submit
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
    assert abs(pace.least(found) - least_run_ahead(LIMITS, workload)) <= 1
    assert pace.least(found) >= least
    assert chosen == ([Lead(pace.least(found))] if pace.least(found) != 1 else [])
    assert (
        len(pace._begun) == len(pace._drawn) <= (1 + LIMITS.max_staleness) * LIMITS.prompts_per_step * LIMITS.group_size
    )


def test_nothing_is_chosen_before_anything_is_typical():
    workload = Workload(slots=1 << 20, mean_tokens=100, sigma=1.0, seconds_per_token=0.02, train_seconds=0.1)
    assert seen(workload, MEASURED_AT[0] - 1)[1] == []


def test_of_rows_that_are_evaluated_given_up_or_moved_nothing_is_kept():
    pace = Pace(LIMITS, 1, lambda lead, why: None, clock=lambda: 0.0)
    pace.see(Asked(), [Submit("a", Row(-1, 0), 1, 0), *(Submit("a", Row(group, 0), 1, 0) for group in range(3))])
    pace.see(Ended("a", Row(-1, 0), 1), [GiveUp(0, "lost")])
    pace.see(Drew("a", Row(1, 0), 1, 0, 5), [])
    pace.see(Lost("a", "killed"), [Submit("b", Row(1, 0), 2, 5)])
    pace.see(Drew("b", Row(1, 0), 2, 0, 5), [])
    pace.see(Ended("b", Row(1, 0), 2), [])
    assert list(pace._begun) == list(pace._drawn) == [Row(2, 0)]
    assert not pace.rows
