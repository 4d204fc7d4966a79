"""What was measured of ranks (benchmarks/ranks_memory.py) is what the planner says today."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.planning.cases import CASES, workload

from posttrain.lab.plan.phases import predict
from posttrain.models.compute import Compute

LINES = json.loads((Path(__file__).parents[3] / "benchmarks" / "results" / "ranks_memory.json").read_text())["lines"]


def test_at_least_six_runs_were_measured_on_one_two_and_four_ranks():
    assert len({line["case"] for line in LINES}) >= 6
    assert {line["ranks"] for line in LINES} == {1, 2, 4}


@pytest.mark.parametrize("line", LINES, ids=[f"{line['case']}, {line['ranks']}" for line in LINES])
def test_the_plan_of_an_update_is_within_a_tenth_of_what_was_measured(line):
    case = next(case for case in CASES if case.full_name == line["case"])
    over = {"ranks": line["ranks"], "sharding": "full" if line["ranks"] > 1 else "none"}
    planned = predict(workload(case, Compute(), **over)).phase("train")
    assert planned is not None
    assert planned.bytes == pytest.approx(line["measured"], rel=0.1)
