"""The measurements of ranks (benchmarks/ranks_memory.py) agree with today's planner."""

from __future__ import annotations

import json

import pytest
from benchmarks.ranks_memory import RESULTS, case_named, planned
from tests.catalogue import catalogue

LINES = [
    line
    for file in ("ranks_memory.json", "ranks_memory_divided.json")
    for line in json.loads((RESULTS / file).read_text())["lines"]
]


def test_at_least_six_runs_were_measured_on_one_two_and_four_ranks():
    assert len({line["case"] for line in LINES}) >= 6
    assert {line["ranks"] for line in LINES} == {1, 2, 4}


@catalogue("line", LINES, ids=[f"{line['case']}, {line['ranks']}" for line in LINES])
def test_the_plan_of_an_update_is_within_a_tenth_of_what_was_measured(line):
    update = planned(case_named(line["case"]), line["ranks"], line.get("neighbours", 1)).phase("train")
    assert update is not None
    assert update.bytes == pytest.approx(line["measured"], rel=0.1)
