"""Plans with a vLLM server on the trainer's GPU or on its own GPU, compared with numbers worked out by hand."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from tests.catalogue import catalogue

from posttrain.config import load_config
from posttrain.errors import ConfigError, DoesNotFit
from posttrain.lab.plan.api import Plan, make_plan
from posttrain.placement import ASLEEP, GIB, OVERHEAD, TURN_SECONDS, placement_for, server_memory

SETTINGS = {"rollout.engine": "vllm", "sampling.max_batch_rows": 8, "train.steps": 20}
"""Few steps, because the forecast of a run that samples while it trains simulates each of them."""
BESIDE_32_GB = {"lora": {}, "train.gradient_checkpointing": True, "train.tokens_per_microbatch": 512}
AHEAD = {"train.run_ahead": 2, "train.max_staleness": 8}


def planned(gpus: str = "4090", model: str = "0.5b", **changes: Any) -> Plan:
    return make_plan(None, SETTINGS | changes, model=model, algorithm="grpo", gpus=gpus)


@functools.cache
def usual(gpus: str = "4090") -> Plan:
    """The plan of `SETTINGS`, made once for the tests that read it."""
    return planned(gpus)


def config(**changes: Any):
    rollout = {"engine": "vllm", **changes.pop("rollout", {})}
    train = {"steps": 2, **changes.pop("train", {})}
    made = {"model": "tiny:add", "algorithm": "grpo", "data": {"train": "train.jsonl"}, "rewards": [{"name": "math"}]}
    return load_config({**made, "rollout": rollout, "train": train, **changes}).config


def test_bytes_of_a_server_of_half_a_billion_parameters():
    """There are 494,032,768 parameters, with the embedding of 151,936 x 896 twice, in two bytes each. A token has 24
    layers of two heads of 64 numbers, for keys and values: 24 x 2 x 2 x 64 x 2 = 12,288 bytes. A row has 256 + 256."""
    for placed in usual().placements:
        assert placed.server.weights == 2 * (494_032_768 + 151_936 * 896) == 1_260_334_848
        assert placed.server.cache == 8 * 512 * 12_288 == 50_331_648


def test_on_one_gpu_sampling_has_the_server_beside_what_stays_and_training_has_it_asleep():
    shared, beside = usual().placements
    assert [shared.placement, beside.placement] == ["shared", "beside"]
    generate, trained = shared.memory.phase("generate"), shared.memory.phase("train")
    alone = beside.memory.phase("train")
    assert generate is not None
    assert trained is not None
    assert alone is not None
    stays = 12 * 494_032_768
    """Float32 weights and two moments."""
    assert generate.bytes == stays + 1_260_334_848 + 50_331_648 + OVERHEAD
    assert trained.bytes == alone.bytes + ASLEEP
    assert shared.verdict.needed == max(generate.bytes, trained.bytes)


def test_beside_each_gpu_has_its_own_and_the_larger_one_counts():
    _, beside = usual().placements
    generate = beside.memory.phase("generate")
    assert generate is not None
    assert generate.place == "engine"
    assert generate.bytes == 1_260_334_848 + 50_331_648 + OVERHEAD
    assert beside.verdict.needed == beside.memory.bytes > generate.bytes


def test_the_cache_shrinks_to_what_the_trainer_leaves_and_not_below_a_row():
    assert server_memory(weights=GIB, row=GIB, rows=3, room=40 * GIB).cache == 3 * GIB
    assert server_memory(weights=GIB, row=GIB, rows=300, room=40 * GIB).awake == 40 * GIB
    assert server_memory(weights=GIB, row=GIB, rows=30, room=4 * GIB).cache == GIB
    with pytest.raises(DoesNotFit, match=r"(?s)1\.0 GiB of weights.* does not fit into 3\.9 GiB.*beside"):
        server_memory(weights=GIB, row=GIB, rows=30, room=int(3.9 * GIB))


def test_a_step_in_turns_costs_a_sleep_and_a_wake_more_than_on_two_gpus():
    shared, beside = usual().placements
    assert 3600 / shared.steps_per_hour - 3600 / beside.steps_per_hour == pytest.approx(TURN_SECONDS)
    ahead = planned("2x4090", **AHEAD)
    assert ahead.beside is not None
    assert ahead.placements[1].steps_per_hour == ahead.beside.steps_per_hour
    assert ahead.placements[0].steps_per_hour < ahead.beside.in_turns < ahead.beside.steps_per_hour


@pytest.mark.slow
def test_the_plan_takes_what_the_run_takes():
    one, two = usual(), usual("2x4090")
    assert [placed.chosen for placed in one.placements] == [True, False]
    assert [placed.chosen for placed in two.placements] == [False, True]
    assert one.verdict == one.placements[0].verdict
    assert two.verdict == two.placements[1].verdict
    assert one.memory == one.placements[0].memory
    forced = planned("2x4090", **{"rollout.placement": "shared"})
    assert [placed.chosen for placed in forced.placements] == [True, False]


def test_the_plan_says_both():
    plan = usual()
    text = " ".join(plan.render().split())
    assert "Server vLLM takes 3.2 GiB: weights 1.2 GiB, KV cache 48 MiB (for up to 8 rows), overhead 2.0 GiB" in text
    assert "shared (one GPU, in turns) fits: yes" in text
    assert "steps an hour; chosen beside (a GPU each) fits: yes" in text
    told = plan.to_json()["placements"]
    assert [one["placement"] for one in told if one["chosen"]] == ["shared"]
    assert told[0]["server"]["awake"] == 1_260_334_848 + 50_331_648 + OVERHEAD


def test_a_run_that_fits_beside_its_server_does_not_fit_with_it():
    """Of 7.6 billion parameters 17 GB stay, besides adapters, and the server takes 15 GB. 32 GB hold one of them."""
    shared, beside = planned("2xrtx-5090", "7b", **BESIDE_32_GB).placements
    assert beside.verdict.fits
    assert not shared.verdict.fits
    generate = shared.memory.phase("generate")
    assert generate is not None
    assert shared.verdict.needed == generate.bytes


@pytest.mark.slow
def test_elsewhere_is_planned_with_the_gpus_that_are_there():
    """On one GPU of 32 GB this run shares it with its server and does not fit. On the plan's two GPUs it would."""
    plan = planned("2x4090", "7b", **BESIDE_32_GB)
    assert not plan.verdict.fits
    assert plan.elsewhere == ("NVIDIA L40S 48 GB",)
    assert planned("l40s", "7b", **BESIDE_32_GB).verdict.fits


def test_a_single_gpu_is_nothing_for_a_run_that_needs_two():
    assert planned("2x4090", "3b", **{"rollout.placement": "beside"}).elsewhere == ()


@pytest.mark.slow
def test_more_gpus_do_not_share_the_training_of_a_run_with_a_server():
    plan = planned("rtx-5090", "7b", **BESIDE_32_GB)
    assert not plan.verdict.fits
    assert not [place for place in plan.elsewhere if "sharded" in place]


def test_a_plan_without_a_server_on_a_gpu_has_no_placements():
    assert planned(**{"rollout.engine": "local"}).placements == ()
    assert make_plan(None, {**SETTINGS, "model.device": "cpu"}, model="0.5b", algorithm="grpo").placements == ()


# --- the rule --------------------------------------------------------------------------------------------------------


@catalogue(
    "changes, cards, taken",
    [
        ({}, 0, "beside"),
        ({}, 1, "shared"),
        ({}, 2, "beside"),
        ({"rollout": {"engines": 2}}, 3, "beside"),
        ({"train": {"run_ahead": 2, "max_staleness": 8}}, 2, "beside"),
        ({"rollout": {"placement": "shared"}}, 2, "shared"),
        ({"rollout": {"placement": "shared"}}, 0, "beside"),
        ({"rollout": {"url": ["http://127.0.0.1:8000"]}}, 1, "beside"),
        ({"rollout": {"url": ["http://127.0.0.1:8000"], "placement": "shared"}}, 1, "shared"),
    ],
)
def test_where_a_server_is(changes, cards, taken):
    assert placement_for(config(**changes), cards) == taken


@pytest.mark.parametrize(
    "changes",
    [
        {"rollout": {"placement": "beside"}},
        {"rollout": {"engines": 2}},
        {"train": {"run_ahead": 2, "max_staleness": 8}},
    ],
)
def test_one_gpu_is_too_few_for_what_does_not_sleep(changes):
    with pytest.raises(ConfigError, match=r"(?s)1 GPU\(s\).*make more GPUs visible"):
        placement_for(config(**changes), 1)
