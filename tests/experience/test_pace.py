"""The lead that a run finds by trial, in simulated runs with a known best lead: the controller obeys each choice."""

from __future__ import annotations

import pytest
from tests.catalogue import few

from posttrain.controller.controller import Controller
from posttrain.controller.messages import Lead, Limits, Stop
from posttrain.controller.simulate import simulate
from posttrain.controller.workload import Workload
from posttrain.controller.world import World
from posttrain.experience.pace import FIRST, Pace

LIMITS = Limits(prompts_per_step=8, group_size=4, last_version=150, run_ahead=FIRST, max_staleness=8)
WORKLOADS = {
    "answers take long and engines have room": Workload(
        slots=1 << 20, mean_tokens=50, sigma=1.0, seconds_per_token=0.02, train_seconds=0.2
    ),
    "sixteen rows at once": Workload(slots=16, mean_tokens=50, sigma=0.5, seconds_per_token=0.01, train_seconds=0.2),
    "each row costs time": Workload(
        slots=64,
        mean_tokens=50,
        sigma=0.5,
        seconds_per_token=0.002,
        seconds_per_token_and_row=0.0005,
        train_seconds=0.2,
    ),
    "training takes all the time": Workload(
        slots=1 << 20, mean_tokens=50, sigma=0.5, seconds_per_token=0.0001, train_seconds=2.0
    ),
}


class Paced(World):
    """Reports events to a pace, and the chosen lead to the controller."""

    def begin(self, controller: Controller) -> None:
        self.chosen: list[int] = []
        self.pace = Pace(LIMITS.max_staleness, self.choose, clock=lambda: self.now)
        super().begin(controller)

    def choose(self, lead: Lead, why: str) -> None:
        self.chosen.append(lead.run_ahead)
        self.after(0.0, lambda: self.tell(lead))

    def tell(self, event) -> None:
        self.history = []
        super().tell(event)
        for _, seen, commands in self.history[:1]:
            self.pace.see(seen, commands)


def paced(workload: Workload) -> Paced:
    world = Paced(LIMITS, workload, 0, Controller, watched=False, history=True)
    world.run()
    assert world.stop == Stop("done", failed=False)
    return world


def speed(workload: Workload, lead: int) -> float:
    """The speed in fewer steps than a trial takes: a constant lead shows its speed early."""
    limits = Limits(**{**vars(LIMITS), "run_ahead": lead, "last_version": 60})
    return simulate(limits, workload, seed=0).steps_per_hour


@pytest.mark.slow
@pytest.mark.parametrize("name", few(WORKLOADS, "sixteen rows at once"))
def test_the_lead_is_nearly_as_fast_as_any_and_no_larger_than_it_has_to_be(name):
    workload = WORKLOADS[name]
    found = paced(workload).pace.lead
    speeds = {lead: speed(workload, lead) for lead in range(1, 9)}
    assert speeds[found] >= 0.9 * max(speeds.values())
    smaller = [lead for lead in speeds if lead < found and speeds[lead] >= 0.97 * speeds[found]]
    assert len(smaller) <= 1, f"{found} is not faster than {smaller}"
