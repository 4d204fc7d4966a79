"""Predictions for a run whose engines sample while it trains, simulated with the controller of real runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from posttrain.lab.plan.api import Plan, make_plan
from posttrain.lab.plan.side_by_side import SideBySide, side_by_side

ASYNCHRONOUS = {"rollout.engines": 1, "train.run_ahead": 2, "train.max_staleness": 8, "train.steps": 30}
TIGHT = {"train.run_ahead": 1, "train.max_staleness": 1}


def planned(changes: Mapping[str, int] | None = None, **how: Any) -> Plan:
    """Plan a model for which sampling takes most of the time."""
    settings = {
        **ASYNCHRONOUS,
        "sampling.max_completion_length": 2048,
        "sampling.max_batch_rows": 64,
        **(changes or {}),
    }
    return make_plan(None, settings, model="0.5b", algorithm="grpo", gpus="h100", mean_completion_tokens=400, **how)


def predicted(plan: Plan) -> SideBySide:
    assert plan.beside is not None
    return plan.beside


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned()


@pytest.mark.slow
def test_steps_per_hour_ages_and_waits_are_predicted(plan):
    found, text = predicted(plan), " ".join(plan.render().split())
    assert found.steps_per_hour > 1.5 * found.in_turns
    assert 0 < found.mean_age <= found.p95_age <= found.oldest <= 8
    assert found.masked == 0
    assert 0 <= found.engines_idle < found.trainer_idle < 1
    for words in (
        "1 engine samples while",
        "as many as in turns",
        "0% are older than",
        "of 400 tokens",
    ):
        assert words in text
    assert plan.to_json()["side_by_side"]["masked"] == 0


@pytest.mark.slow
def test_a_bound_as_tight_as_the_lead_masks_tokens_and_the_plan_says_which_would_not():
    tightest = planned(TIGHT)
    tight, even = predicted(tightest), predicted(planned(TIGHT, length_spread=0.0))
    assert tight.masked > 0.01
    assert tight.masked > even.masked
    assert tight.oldest == 1
    wider = planned({**TIGHT, "train.max_staleness": tight.enough_staleness})
    assert predicted(wider).masked <= 0.01
    assert predicted(wider).steps_per_hour == tight.steps_per_hour  # the bound costs no time
    assert "would mask at most 1%" in tightest.render()
    assert "would mask at most 1%" not in wider.render()


@pytest.mark.slow
def test_more_engines_help_where_sampling_takes_the_time(plan):
    two, one = predicted(planned({"rollout.engines": 2})), predicted(plan)
    assert two.steps_per_hour > 1.3 * one.steps_per_hour
    assert two.trainer_idle < one.trainer_idle


@pytest.mark.slow
def test_a_trajectory_is_simulated_as_one_answer_of_its_length(plan):
    """No environment is waited for between turns: the simulation of a run with tools is that of a run without."""
    tools = plan.config.model_copy(update={"tools": ["calculator"]})
    assert tools.has_turns
    assert side_by_side(tools, plan.workload, plan.hardware, None) == predicted(plan)


def test_a_run_that_samples_in_turns_is_planned_as_before():
    plan = make_plan(None, {}, model="0.5b", algorithm="grpo", gpus="h100")
    assert plan.beside is None
    assert "Beside" not in plan.render()
    assert plan.to_json()["side_by_side"] is None
