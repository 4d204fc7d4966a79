"""The effect of `train.devices` on the GPUs of a machine: planned like the run uses them, and refused if impossible."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from posttrain.config import load_config
from posttrain.errors import DoesNotFit
from posttrain.lab.plan.api import Target, from_flags, plan_for
from posttrain.lab.plan.before_run import least_verdict, refuse
from posttrain.lab.plan.hardware import find_hardware, this_gpu
from posttrain.lab.plan.mesh import shard_group
from posttrain.lab.plan.phases import predict
from posttrain.lab.plan.roles import in_main_memory
from posttrain.lab.plan.target import available_memory, over_ranks, processor_here


def config(model: str, devices: int | str, algorithm: str = "sft", **changes: object):
    return load_config(from_flags(model, algorithm), {"train.devices": devices, **changes}).config


@pytest.mark.parametrize(("devices", "count"), [(1, 1), (4, 4), ("auto", 8)])
def test_a_run_is_planned_on_as_many_gpus_as_it_trains_on(devices, count):
    assert over_ranks(find_hardware("h100"), 8, config("7b", devices)).count == count


def test_the_ranks_of_a_job_are_those_that_were_started(monkeypatch):
    for name, value in {"RANK": "3", "WORLD_SIZE": "16", "LOCAL_RANK": "3", "MASTER_ADDR": "h"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "1")
    assert over_ranks(find_hardware("h100"), 8, config("7b", "auto")).count == 16


def test_ranks_on_a_cpu_are_planned_as_one():
    assert over_ranks(processor_here(), 1, config("7b", 4)).count == 1


@pytest.mark.parametrize(("told", "node"), [("4", 4), ("", 8)])
def test_how_many_ranks_a_machine_has_says_the_launcher_else_the_table(monkeypatch, told, node):
    for name, value in {"RANK": "3", "WORLD_SIZE": "16", "LOCAL_RANK": "3", "MASTER_ADDR": "h"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", told)
    assert over_ranks(find_hardware("h100"), 8, config("7b", "auto")).node == node


def planned(model: str, devices: int, algorithm: str = "sft", **changes: object):
    resolved = config(model, devices, algorithm, **changes)
    hardware = over_ranks(find_hardware("h100"), 8, resolved)
    return plan_for(resolved, Target(hardware=hardware, cards=8))


def test_what_one_gpu_cannot_hold_fits_on_eight():
    alone, together = planned("7b", 1), planned("7b", 8)
    with pytest.raises(DoesNotFit):
        refuse(alone, least_verdict(alone), Path())
    refuse(together, least_verdict(together), Path())
    assert together.workload.ranks == 8


def test_a_model_that_no_device_has_room_for_is_trained_by_several():
    plan = planned("32b", 8)
    assert 4 * plan.workload.architecture.parameters > plan.verdict.available
    assert plan.start_bytes == 0
    assert not plan.too_large_to_start


@pytest.mark.slow
def test_a_copy_to_sample_from_that_no_device_has_room_for_is_refused_unless_engines_sample():
    plan = planned("32b", 16, "grpo")
    assert plan.start_bytes == 4 * plan.workload.architecture.parameters
    with pytest.raises(DoesNotFit, match="the first rank samples from a copy of the model"):
        refuse(plan, replace(least_verdict(plan), needed=0), Path())
    assert "but the first rank samples from a copy of the model" in " ".join(plan.render().split())
    assert planned("32b", 16, "grpo", **{"rollout.engines": 2}).start_bytes == 0


def test_of_several_ranks_the_first_samples_all_prompts_from_a_whole_copy():
    """Work and time equal those of one device with a copy, for any number of ranks. Twice the engines take half the
    time."""
    one = planned("0.5b", 1, "grpo", **{"train.publish_every": 2})  # its sampler has a copy, too
    eight = planned("0.5b", 8, "grpo")
    assert (one.workload.engine, one.workload.samplers) == ("copy", None)
    assert (eight.workload.engine, eight.workload.samplers) == ("copy", 1)
    assert [part.work for part in eight.cost.parts if part.phase == "generate"] == [
        part.work for part in one.cost.parts if part.phase == "generate"
    ]
    assert eight.cost.of("generate") == one.cost.of("generate")
    assert eight.evaluation_seconds == one.evaluation_seconds
    two, four = (planned("0.5b", 8, "grpo", **{"rollout.engines": engines}) for engines in (2, 4))
    assert two.cost.of("generate") == pytest.approx(eight.cost.of("generate"), rel=0.5)
    assert four.cost.of("generate") < two.cost.of("generate") < eight.cost.of("generate")
    assert "the first of 8 devices samples from its own copy" in " ".join(eight.render().split())


def test_memory_of_sampling_is_that_of_the_first_rank():
    """The first rank holds a whole copy in bfloat16 and the keys and values of all rows, even with divided matrices."""
    for changes in ({}, {"train.tensor": 2}):
        plan = planned("7b", 8, "grpo", **changes)
        generate = plan.memory.phase("generate")
        assert generate is not None
        assert generate.of("sampler", "copy of the weights") == 2 * plan.workload.architecture.parameters
        alone = predict(replace(plan.workload, ranks=1, samplers=None, sharding="none", tensor=1)).phase("generate")
        assert alone is not None
        assert generate.of("sampler", "keys and values") == alone.of("sampler", "keys and values")


def test_an_engine_that_is_named_plans_that_all_devices_sample():
    target = Target(hardware=find_hardware("8xh100"), engine="shared")
    plan = plan_for(config("7b", 8, "grpo"), target)
    generate = plan.memory.phase("generate")
    assert plan.workload.samplers is None
    assert generate is not None
    assert generate.of("sampler", "copy of the weights") == 0
    assert "all 8 devices sample here (--engine shared)" in " ".join(plan.render().split())


def test_with_cpu_offload_weights_gradients_and_moments_leave_the_device_and_are_told():
    """Each parameter takes 16 bytes, a quarter of them on each rank."""
    on_device, offloaded = planned("7b", 4), planned("7b", 4, **{"train.cpu_offload": True})
    parameters = on_device.workload.architecture.parameters
    stays = {part.what for part in offloaded.memory.peak.parts if part.stays}
    assert stays == set()
    assert in_main_memory(offloaded.workload) == pytest.approx(16 * parameters / 4)
    before, after = on_device.memory.phase("train"), offloaded.memory.phase("train")
    assert before is not None
    assert after is not None
    assert before.of(what="weights") + before.of(what="optimizer state") == pytest.approx(12 * parameters / 4)
    assert after.of(what="gathered layers") > 0
    assert "of weights, gradients and moments of each device are in main memory" in " ".join(offloaded.render().split())


def offloaded(main_memory: float | None, algorithm: str = "ppo"):
    """Plan 7B on four GPUs of a machine with `main_memory` GiB of main memory."""
    resolved = config("7b", 4, algorithm, **{"train.cpu_offload": True})
    return plan_for(resolved, Target(hardware=find_hardware("4xh100"), main_memory=main_memory))


def test_weights_in_main_memory_are_held_against_what_a_machine_has():
    """Policy and critic take 16 bytes per parameter, whatever the number of ranks that share them."""
    plan = offloaded(400)
    assert plan.main_memory is not None
    assert plan.main_memory.needed == 4 * in_main_memory(plan.workload)
    assert plan.main_memory.needed > 16 * 2 * 7e9
    assert plan.main_memory.answer == "yes"
    assert "main memory of a machine fits: yes" in " ".join(plan.render().split())
    assert offloaded(None).main_memory is None, "the main memory is unknown"
    refuse(plan, least_verdict(plan), Path())


def test_a_machine_without_room_for_them_is_refused_and_settings_that_need_less_are_named():
    plan = offloaded(100)
    assert plan.verdict.fits, "the plan fits on the devices"
    assert not plan.fits
    with pytest.raises(
        DoesNotFit, match=r"with train.cpu_offload the ranks of a machine keep 2\d\d GiB in main memory"
    ):
        refuse(plan, least_verdict(plan), Path())
    assert plan.to_json()["main_memory"]["fits"] == "no"
    assert "main memory of a machine fits: no" in " ".join(plan.render().split())
    assert plan.changes
    for change in plan.changes:
        changed = plan_for(load_config(plan.config, change.settings).config, plan.target, advice=False)
        assert changed.fits, change


@pytest.mark.slow
def test_weights_in_main_memory_are_suggested_only_where_that_has_room():
    hardware = find_hardware("8xh100")
    found = {}
    for gib in (100, 1000):
        plan = plan_for(config("7b", 8, "ppo"), Target(hardware=hardware, main_memory=gib))
        found[gib] = any("train.cpu_offload" in change.settings for change in plan.changes)
    assert found == {100: False, 1000: True}


def test_a_gpu_of_this_machine_is_held_against_the_main_memory_of_this_machine():
    gpu = replace(this_gpu("NVIDIA H100 80GB HBM3", total=80 * 2**30, free=80 * 2**30), count=4)
    resolved = config("32b", 4, **{"train.cpu_offload": True})
    plan = plan_for(resolved, Target(hardware=gpu, cards=4))
    assert plan.main_memory is not None
    assert plan.main_memory.available == pytest.approx(available_memory().memory, rel=0.2)


def sharded(model: str, gpus: str, **settings: object) -> tuple[str, int]:
    plan = plan_for(config(model, 1, **settings), Target(hardware=find_hardware(gpus)))
    return plan.workload.sharding, shard_group(plan.workload).ranks


def test_auto_keeps_a_copy_on_each_machine_where_it_fits_and_the_network_is_slow():
    assert sharded("1.5b", "8xh100") == ("full", 8), "the run has one machine"
    assert sharded("1.5b", "16xl40s") == ("hybrid", 8)
    assert sharded("1.5b", "16xh100") == ("full", 16), "a machine's eight network cards are nearly as fast as its GPUs"
    assert sharded("32b", "16xl40s") == ("full", 16), "a copy per machine takes 64 GB a device"
    assert sharded("1.5b", "12xh100") == ("full", 12), "the run has one and a half machines"


def test_a_copy_on_fewer_ranks_is_planned_with_its_memory_and_its_traffic():
    """Each of four groups of two holds all weights: 16 bytes per parameter on two devices. Every gradient of a part is
    summed over the four."""
    hardware = find_hardware("8xh100")
    two = plan_for(config("1.5b", 8, **{"train.shard": 2}), Target(hardware=hardware))
    eight = plan_for(config("1.5b", 8), Target(hardware=hardware))
    assert (two.workload.sharding, two.workload.shard) == ("hybrid", 2)
    kept = [sum(part.bytes for part in one.memory.peak.parts if part.stays) for one in (two, eight)]
    assert kept[0] == pytest.approx(4 * kept[1])
    groups = {(one.kind, one.group.ranks) for one in two.cost.messages("train")}
    assert groups == {("all-gather", 2), ("reduce-scatter", 2), ("all-reduce", 4)}


def test_a_copy_on_each_rank_is_summed_after_each_micro_batch_and_gathers_nothing():
    plan = plan_for(config("0.5b", 8, **{"train.shard": 1}), Target(hardware=find_hardware("8xh100")))
    assert {(one.kind, one.group.ranks) for one in plan.cost.messages("train")} == {("all-reduce", 8)}
    train = plan.memory.phase("train")
    assert train is not None
    assert train.of(what="gathered layers") > 0, "FSDP copies weights to where a pass uses them"
