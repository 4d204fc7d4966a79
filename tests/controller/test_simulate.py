"""Simulated runs: their predictions, their repeatability, and the invariants in hundreds of runs with faults."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from benchmarks.schedules import found_by, scheduled
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import examples

from posttrain.controller.faults import FAULTS, Faults
from posttrain.controller.messages import Drew, Joined, Limits, Stop
from posttrain.controller.simulate import simulate
from posttrain.controller.workload import Workload

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    ("seeds", "least"),
    [(range(388, 488), 3), pytest.param(range(800), 5, marks=pytest.mark.slow)],  # the 100 with most of the rare faults
    ids=["100", "800"],
)
def test_the_invariants_hold_and_every_fault_happens_and_is_noticed(seeds, least):
    counts = found_by(seeds)
    assert counts["broken"] == Counter()
    assert {kind for kind in FAULTS if counts["faults"][kind] >= least} == set(FAULTS)
    for kind in FAULTS:
        assert 0.4 * counts["faults"][kind] <= counts["answered"][kind] <= counts["faults"][kind], kind
    assert set(counts["ends"]) == {"done", "stopped by the user", "failed, with a cause"}


LIMITS = st.builds(
    Limits,
    prompts_per_step=st.integers(1, 4),
    group_size=st.integers(1, 4),
    last_version=st.integers(1, 6),
    run_ahead=st.integers(0, 4),
    max_staleness=st.integers(0, 4),
    publish_every=st.integers(1, 3),
    max_groups=st.integers(1, 20),
    attempts=st.integers(1, 4),
)
TIMES = st.sampled_from((0.0, 0.01, 0.1, 1.0, 3.0))
WORKLOADS = st.builds(
    Workload,
    engines=st.integers(1, 4),
    slots=st.integers(1, 8),
    seconds_per_token=st.sampled_from((0.01, 0.1, 0.3)),
    seconds_per_token_and_row=TIMES,
    mean_tokens=st.integers(1, 30),
    sigma=st.floats(0.0, 2.0),
    reward_seconds=TIMES,
    train_seconds=TIMES,
    publish_seconds=TIMES,
    load_seconds=TIMES,
    join_seconds=TIMES,
    voided=st.sampled_from((0.0, 0.3)),
    report_seconds=st.sampled_from((None, 0.7)),
)


@pytest.mark.slow
@given(LIMITS, WORKLOADS, st.integers(0, 1 << 30))
@examples(30, 100)
def test_without_faults_every_run_is_done_and_nothing_is_given_up(limits, workload, seed):
    run = simulate(limits, workload, seed=seed, watched=True)
    assert run.broken == []
    assert run.stop == Stop("done", failed=False)
    assert len(run.steps) == limits.last_version
    assert set(run.counts) <= {"voided"}
    assert run.largest_lag <= limits.max_staleness + limits.publish_every - 1


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run():
    for seed in range(20):
        assert scheduled(seed, history=True) == scheduled(seed, history=True)
    assert scheduled(3, history=True) != scheduled(4, history=True)


def test_a_synchronous_run_takes_what_can_be_computed_by_hand():
    """Two rows have 100 tokens of 10 ms, a step takes 1 s, a publication 0.1 s, before the first step and after
    each."""
    workload = Workload(
        slots=2,
        seconds_per_token=0.01,
        mean_tokens=100,
        sigma=0.0,
        train_seconds=1.0,
        publish_seconds=0.1,
        load_seconds=0.5,
    )
    run = simulate(Limits(prompts_per_step=1, group_size=2, last_version=3), workload)
    assert run.seconds == pytest.approx(3 * (0.1 + 0.5 + 1.0 + 1.0) + 0.1)
    assert run.steps_per_hour == pytest.approx(3 * 3600 / 7.9)
    assert run.lags == Counter({0: 600})
    assert (run.trainer_idle, run.engines_idle) == pytest.approx((1 - 3.4 / 7.9, 1 - 3.0 / 7.9))
    assert run.share_of_longest() == (1.0, 1.0)


def test_an_engine_decodes_its_rows_side_by_side_and_the_others_wait():
    """Four rows of 10 tokens use two slots: twice 10 tokens of 1 + 2 * 0.5 s."""
    workload = Workload(
        slots=2,
        seconds_per_token=1.0,
        seconds_per_token_and_row=0.5,
        mean_tokens=10,
        sigma=0.0,
        train_seconds=0.0,
        publish_seconds=0.0,
    )
    assert simulate(Limits(prompts_per_step=1, group_size=4, last_version=1), workload).seconds == pytest.approx(40)


def test_interrupted_rows_have_tokens_of_several_versions():
    workload = Workload(slots=64, mean_tokens=1000, sigma=1.0, train_seconds=0.3)
    limits = Limits(prompts_per_step=4, group_size=4, last_version=30, run_ahead=2, max_staleness=50)
    run = simulate(limits, workload, history=True, watched=True)
    assert run.broken == []
    versions = {row: {e.version for _, e, _ in run.history if isinstance(e, Drew) and e.row == row} for row in
                {e.row for _, e, _ in run.history if isinstance(e, Drew)}}  # fmt: skip
    assert max(len(found) for found in versions.values()) >= 5
    assert run.largest_lag >= 5
    assert run.lag_quantile(0.95) <= run.largest_lag
    assert run.masked == 0.0


def test_masked_tokens_are_counted_and_not_those_of_whole_groups():
    workload = Workload(slots=64, mean_tokens=1000, sigma=1.0, train_seconds=0.3)
    limits = Limits(prompts_per_step=4, group_size=4, last_version=30, run_ahead=2, max_staleness=2)
    run = simulate(limits, workload)
    assert 0.1 < run.masked < 0.5
    assert run.largest_lag == 2
    assert all(len(step.rows) == 16 for step in run.steps)


def test_runs_with_other_limits_sample_the_same_answers():
    workload = Workload(slots=8)
    runs = [
        simulate(Limits(prompts_per_step=2, group_size=2, last_version=5, run_ahead=ahead), workload, seed=7)
        for ahead in (0, 2)
    ]
    assert sorted(runs[0].drawn) == sorted(runs[1].drawn)


def test_a_second_engine_halves_the_time_of_what_waits_for_a_slot():
    limits = Limits(prompts_per_step=16, group_size=1, last_version=4)
    seconds = [
        simulate(limits, Workload(engines=n, slots=4, sigma=0.0, train_seconds=0.0, publish_seconds=0.0)).seconds
        for n in (1, 2)
    ]
    assert seconds[0] == pytest.approx(2 * seconds[1])


def test_faults_happen_when_and_as_often_as_asked():
    limits, workload = Limits(prompts_per_step=1, group_size=1, last_version=20), Workload(deadlines={"draw": 10.0})
    run = simulate(
        limits, workload, faults=Faults(5, within=10.0, kinds=("engine killed",)), history=True, watched=True
    )
    assert run.faults["engine killed"] <= 5
    assert sum(isinstance(event, Joined) for _, event, _ in run.history) >= run.counts["engines_lost"] >= 3


def test_a_seed_can_be_replayed_from_the_command_line():
    command = [sys.executable, "benchmarks/schedules.py", "--seed", "11"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "Joined(engine='engine-0')" in done.stdout
    assert "-> Stop(" in done.stdout
