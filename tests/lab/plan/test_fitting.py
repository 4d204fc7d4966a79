"""The smallest changes that make a run fit, for needs worked out by hand and for real plans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.catalogue import few

from posttrain.config import check, check_over, load_config
from posttrain.lab.plan.api import from_flags, make_plan, plan_for
from posttrain.lab.plan.fitting import Step, possible_steps, smallest_changes
from posttrain.lab.plan.verdict import Verdict

SAVES = {"a": 30, "b": 10, "c": 25, "d": 0}
STEPS = [Step(settings={name: True}, costs=f"costs {name}") for name in SAVES]


def attempt(settings: Mapping[str, Any]) -> tuple[int, float]:
    """Return a need of 100 bytes, minus the savings of each setting."""
    return 100 - sum(SAVES[name] for name in settings), 1.0


def chosen(available: int) -> list[set[str]]:
    return [set(change.settings) for change in smallest_changes(STEPS, attempt, available)]


def test_every_single_change_that_is_enough_is_named_the_cheapest_first():
    assert chosen(75) == [{"a"}, {"c"}]
    assert chosen(90) == [{"a"}, {"b"}, {"c"}]


def test_where_none_is_enough_a_combination_is_and_it_holds_nothing_to_spare():
    assert chosen(60) == [{"a", "b"}]
    assert chosen(50) == [{"a", "c"}]  # b was added on the way and dropped again, and d never helps
    assert chosen(35) == [{"a", "b", "c"}]


def test_where_nothing_helps_nothing_is_named():
    assert chosen(30) == []


def test_a_change_that_saves_memory_only_once_another_has_removed_the_peak_is_found():
    """The larger of two moments counts, so the first change alone saves nothing. The mildest of several values fits."""
    steps = [Step(settings=change, costs="") for change in ({"rows": 2}, {"rows": 1}, {"offload": True}, {"rank": 8})]

    def largest(settings: Mapping[str, Any]) -> tuple[int, float]:
        loading = 20 if "offload" in settings else 100
        return max(loading, 20 * settings.get("rows", 4) - settings.get("rank", 0)), 1.0

    (change,) = smallest_changes(steps, largest, 40)
    assert change.settings == {"rows": 2, "offload": True}
    (change,) = smallest_changes(steps, largest, 20)
    assert change.settings == {"rows": 1, "offload": True}
    assert not smallest_changes(steps, largest, 19)


@pytest.mark.parametrize(("model", "algorithm", "gpus"), [("70b", "kto", "2xa10g"), ("32b", "sft", "2xrtx-4090")])
def test_adapters_of_a_large_model_fit_with_its_base_in_main_memory(model, algorithm, gpus):
    plan = make_plan(model=model, algorithm=algorithm, gpus=gpus, overrides={"lora.rank": 16, "train.devices": 2})
    assert not plan.fits
    (change,) = plan.changes
    assert {"train.gradient_checkpointing", "train.cpu_offload"} <= set(change.settings)
    assert change.bytes <= plan.verdict.surely


def test_settings_that_do_not_go_together_are_passed_over():
    refusing = [Step(settings={"a": True}, costs=""), Step(settings={"c": True}, costs="")]
    found = smallest_changes(refusing, lambda s: None if "a" in s else attempt(s), 80)
    assert [dict(change.settings) for change in found] == [{"c": True}]


def test_what_a_plan_suggests_makes_the_same_run_fit():
    """Each suggestion of several plans surely fits when planned again, and none of its settings can be left out."""
    for model, algorithm, gpus in (("7b", "grpo", "l40s"), ("1.5b", "ppo", "l4"), ("3b", "dpo", "rtx-4090")):
        plan = make_plan(model=model, algorithm=algorithm, gpus=gpus)
        assert not plan.verdict.fits
        assert plan.changes, (model, algorithm)
        for change in plan.changes:
            for left_out in (None, *change.settings):
                settings = {name: value for name, value in change.settings.items() if name != left_out}
                changed = plan_for(load_config(plan.config, settings).config, plan.target, advice=False)
                if left_out is None:
                    assert changed.verdict.answer == "yes", change
                    assert changed.memory.bytes == change.bytes
                elif len(plan.changes) == 1 and left_out != "critic.kind":  # critic.kind comes with adapters
                    assert changed.verdict.answer != "yes", (change, left_out)


@pytest.mark.parametrize("devices", few([1, "auto", 8], 1, 8))
def test_what_a_plan_of_several_gpus_suggests_is_what_so_many_ranks_take(devices):
    """Eight ranks refuse 8-bit moments, and one device refuses weights in main memory. A suggestion that needs more
    devices names them."""
    plan = make_plan({**from_flags("7b", "ppo"), "train": {"steps": 2, "devices": devices}}, gpus="8xh100")
    offered = {name for step in possible_steps(plan.config, plan.workload) for name in step.settings}
    assert {"train.optimizer", "train.cpu_offload"} <= offered
    assert plan.changes
    for change in plan.changes:
        config = load_config(plan.config, change.settings).config
        check(config)
        check_over(config, 8)
    assert any("train.cpu_offload" in change.settings for change in plan.changes)


@pytest.mark.slow
def test_no_seconds_are_told_of_what_nobody_has_timed():
    plan = make_plan(model="7b", algorithm="ppo", gpus="8xh100")
    seconds = {"train.cpu_offload" in change.settings: change.seconds for change in plan.changes}
    assert seconds[True] is None
    assert seconds[False] is not None
    told = " ".join(plan.render().split())
    assert (
        "train.cpu_offload=true train.devices=8: 61 GiB; 29 GiB of main memory for each device, and far slower steps"
        in told
    )
    offloaded = make_plan(plan.config, {"train.cpu_offload": True, "train.devices": 8}, gpus="8xh100")
    assert (offloaded.step_seconds, offloaded.run_seconds, offloaded.dollars) == (None, None, None)
    assert offloaded.line().endswith("on each device, time not computed")
    assert "Time not computed with train.cpu_offload" in " ".join(offloaded.render().split())
    assert offloaded.to_json()["run"]["seconds"] is None


def test_gpus_on_which_ranks_refuse_the_settings_are_not_suggested():
    plan = make_plan(model="7b", algorithm="sft", gpus="l40s", overrides={"train.optimizer": "adamw_8bit"})
    assert not plan.verdict.fits
    assert not [one for one in plan.elsewhere if "sharded" in one]
    assert [one for one in make_plan(model="7b", algorithm="sft", gpus="l40s").elsewhere if "sharded" in one]


def test_the_answer_has_the_error_of_the_estimate_on_both_sides():
    answers = {n: Verdict(needed=n, available=100, error=0.25).answer for n in (80, 81, 100, 101, 133, 134)}
    assert answers == {80: "yes", 81: "probably", 100: "probably", 101: "hardly", 133: "hardly", 134: "no"}
    assert (
        Verdict(needed=134, available=100, error=0.25, swap=1).answer == "hardly"
    )  # memory that can be paged out fits
    assert Verdict(needed=71 * 2**30, available=80 * 2**30, error=0.1).sentence() == "fits: yes, 71 of 80 GiB"
