"""With two copies of the weights on four ranks, each rank holds as much as the planner says."""

from __future__ import annotations

import json

import pytest
from benchmarks.planning.cases import build_model, workload
from benchmarks.ranks_memory import case_named
from tests.ranks.jobs import finish, start

from posttrain.lab.plan.phases import predict
from posttrain.models.compute import Compute


@pytest.mark.slow
def test_live_bytes_of_a_rank_are_within_a_tenth_of_the_plan(tmp_path):
    case = case_named("0.3M PPO, separate critic")
    build_model(case, tmp_path / "model")
    arguments = [case.full_name, str(tmp_path), str(tmp_path / "out.json"), "2"]
    finish(start(4, "benchmarks.ranks_memory", *arguments), timeout=1200)
    measured = json.loads((tmp_path / "out.json").read_text())["peaks"]["train"]
    planned = {
        shard: predict(workload(case, Compute(), ranks=4, sharding="hybrid", shard=shard, engine="shared")).phase(
            "train"
        )
        for shard in (2, 4)
    }
    assert planned[2] is not None
    assert planned[4] is not None
    assert planned[2].bytes == pytest.approx(measured, rel=0.1)
    assert planned[4].bytes < 0.85 * measured, "otherwise the test shows nothing"
