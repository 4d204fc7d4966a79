"""docs/asynchronous.md agrees with the results on file. Our rule keeps its promises, and the rivals keep theirs."""

from __future__ import annotations

import pytest
from benchmarks import schedules, staleness
from benchmarks.asynchrony.tables import with_tables
from benchmarks.staleness import EARLIER, PAGE, RULES, UNBOUNDED, workload

from posttrain.controller.faults import FAULTS
from posttrain.controller.messages import Limits
from posttrain.controller.simulate import Simulated, simulate

FOUND = staleness.on_file()


def test_the_page_has_the_tables_of_the_results():
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page, staleness.tables(FOUND) | schedules.tables(schedules.on_file())) == page


def test_ours_keeps_the_bound_and_at_the_defaults_the_longest_answers_and_nearly_every_token():
    for one in FOUND:
        if one.rule == "ours":
            assert one.max_staleness is not None
            assert one.largest_age <= one.max_staleness
            assert one.thrown_away == 0
        if (one.rule, one.run_ahead, one.max_staleness, one.longest) == ("ours", 2, 8, 6.0):
            assert abs(one.longest_trained - one.longest_drawn) <= 0.02
            assert one.masked < 0.01


def test_the_speeds_are_those_of_an_earlier_model_of_the_same_workload():
    for (sigma, ahead, bound), (speed, masked, mean, largest) in EARLIER.items():
        (one,) = (o for o in staleness.ours(FOUND, sigma, 6.0) if (o.run_ahead, o.max_staleness) == (ahead, bound))
        assert one.speed == pytest.approx(speed, rel=0.03)
        assert 100 * one.masked == pytest.approx(masked, abs=2.5)
        if mean:
            assert one.mean_age == pytest.approx(mean, abs=0.15)
            assert abs(one.largest_age - largest) <= 1


def rival(rule: str, bound: int) -> Simulated:
    limits = Limits(
        prompts_per_step=8,
        group_size=4,
        last_version=40,
        run_ahead=2,
        max_staleness=bound,
        max_given_up=UNBOUNDED,
    )
    return simulate(limits, workload(1.0, 6.0), controller=RULES[rule][0])


@pytest.mark.slow
def test_who_drops_trains_no_old_token_and_loses_the_longest():
    run = rival("drop", 2)
    drawn, trained = run.share_of_longest()
    assert (run.masked, run.largest_lag) == (0, 2)
    assert trained < drawn - 0.05


@pytest.mark.slow
def test_who_waits_trains_every_token_and_takes_longer():
    run = rival("wait", 2)
    assert (run.masked, run.largest_lag) == (0, 2)
    assert run.seconds > 1.2 * rival("ours", 2).seconds


def test_only_the_admission_leaves_tokens_as_old_as_they_come():
    assert rival("admission", UNBOUNDED).largest_lag > 2


def test_a_hundred_thousand_schedules_with_every_fault_are_on_file():
    found = schedules.on_file()
    assert found["schedules"] >= 100_000
    assert {kind for kind in FAULTS if found["answered"][kind] >= 1000} == set(FAULTS)
