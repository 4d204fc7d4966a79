"""How ranks are grouped, which part of a model a rank of divided matrices holds, and refused groups."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import pytest
from tests.catalogue import catalogue

from posttrain.errors import ConfigError
from posttrain.lab.plan import cost
from posttrain.lab.plan.api import make_plan
from posttrain.lab.plan.architecture import read_architecture
from posttrain.lab.plan.mesh import (
    Group,
    check_groups,
    copies,
    data_group,
    engine_group,
    engines,
    part_of,
    shard_group,
    tensor_group,
)
from posttrain.lab.plan.phases import predict
from posttrain.lab.plan.records import Workload
from posttrain.lab.plan.roles import root_parameters

SHAPE = read_architecture("70b")
WORK = Workload(architecture=SHAPE, algorithm="sft", needs=frozenset(), data_kind="examples", ranks=64, sharding="full")


@catalogue(
    "fields, tensor, shard, same",
    [
        ({}, Group(1, 1), Group(64, 8), Group(1, 1)),
        ({"tensor": 2}, Group(2, 2), Group(32, 4), Group(1, 1)),
        ({"tensor": 8}, Group(8, 8), Group(8, 1), Group(1, 1)),
        ({"sharding": "hybrid"}, Group(1, 1), Group(8, 8), Group(8, 1)),
        ({"sharding": "hybrid", "tensor": 2}, Group(2, 2), Group(4, 4), Group(8, 1)),
        ({"sharding": "hybrid", "shard": 32}, Group(1, 1), Group(32, 8), Group(2, 1)),
        ({"sharding": "hybrid", "shard": 2}, Group(1, 1), Group(2, 2), Group(32, 4)),
        ({"sharding": "hybrid", "shard": 1}, Group(1, 1), Group(1, 1), Group(64, 8)),
        ({"ranks": 12}, Group(1, 1), Group(12, 8), Group(1, 1)),
        ({"ranks": 4}, Group(1, 1), Group(4, 4), Group(1, 1)),
        ({"node": 4}, Group(1, 1), Group(64, 4), Group(1, 1)),
    ],
    ids=str,
)
def test_neighbours_divide_matrices_and_the_others_rows(fields, tensor, shard, same):
    work = replace(WORK, **fields)
    assert (tensor_group(work), shard_group(work), copies(work)) == (tensor, shard, same)
    assert data_group(work).ranks * work.tensor == work.ranks
    assert shard_group(work).ranks * copies(work).ranks == data_group(work).ranks


def test_engines_have_as_many_devices_as_a_machine_unless_told_otherwise():
    work = replace(WORK, engine="separate", engine_ranks=16)
    assert (engine_group(work), engines(work)) == (Group(8, 8), 2)
    assert (engine_group(replace(work, engine_tensor=4)), engines(replace(work, engine_tensor=4))) == (Group(4, 4), 4)
    assert (engine_group(replace(work, engine_ranks=2)), engines(replace(work, engine_ranks=2))) == (Group(2, 2), 1)


def test_eight_parts_of_a_model_are_the_model():
    part = part_of(SHAPE, 8)
    whole, divided = SHAPE.counts, part.counts
    for name in ("attention", "mlp", "embeddings", "head"):
        assert 8 * getattr(divided, name) == getattr(whole, name)
    assert divided.norms == whole.norms, "each rank holds whole norms"
    assert 8 * cost.linear_flops(part) == cost.linear_flops(SHAPE)
    assert 8 * cost.attention_flops(part, 4096) == cost.attention_flops(SHAPE, 4096)
    assert 8 * part.kv_width == SHAPE.kv_width
    assert cost.head_flops(part) == cost.head_flops(SHAPE), "each rank computes all logits of its rows"
    assert root_parameters(part) == root_parameters(SHAPE), "each rank holds the whole head meanwhile"


@pytest.mark.parametrize("fields", [{"tensor": 8}, {"tensor": 2}, {}], ids=str)
def test_whatever_divides_it_the_state_of_a_model_is_sixteen_bytes_a_parameter_over_all_ranks(fields):
    train = predict(replace(WORK, **fields)).phase("train")
    assert train is not None
    state = sum(train.of("policy", what) for what in ("weights", "optimizer state"))
    assert state == pytest.approx(12 * SHAPE.parameters / 64, rel=1e-3)


def test_a_plan_divides_matrices_as_the_run_does_unless_it_is_asked_for_something_else():
    settings = {"train.devices": 8, "train.tensor": 2}
    plan = partial(make_plan, None, model="7b", algorithm="sft", gpus="8xh100")
    assert plan(settings).workload.tensor == 2
    assert plan(settings, tensor=4).workload.tensor == 4
    four = plan(settings | {"train.shard": 4}).workload
    assert (four.sharding, shard_group(four)) == ("full", Group(4, 4))


def test_hybrid_sharding_needs_as_much_as_one_machine():
    one_machine, eight = (
        predict(replace(WORK, ranks=ranks, sharding=sharding, prompts_per_step=ranks)).phase("train")
        for ranks, sharding in ((8, "full"), (64, "hybrid"))
    )
    assert one_machine is not None
    assert one_machine == eight


@pytest.mark.parametrize(
    ("gpus", "how", "message"),
    [
        ("64xh100", {"tensor": 16}, r"tensor = 16 \(--tensor\) for 64 devices, 8 in a machine"),
        ("64xh100", {"tensor": 3}, "allowed: a divisor of both"),
        ("8xh100", {"sharding": "hybrid"}, "Set --sharding full, or use 16 devices"),
        ("12xh100", {"sharding": "hybrid"}, "two or more whole machines"),
        ("8xh100", {"engine": "separate", "engine_ranks": 12}, r"12 devices of engines \(--engine-gpus\), 8 each"),
        ("8xh100", {"network": 0.0}, r"network = 0.0 \(--network\); allowed: 0.1 or more"),
    ],
)
def test_ranks_that_cannot_be_grouped_are_refused(gpus, how, message):
    with pytest.raises(ConfigError, match=message):
        make_plan(model="70b", algorithm="grpo", gpus=gpus, **how)


OF_EIGHT, OF_FOUR = (f"; allowed: a divisor of {groups}; fix: Set train.shard = auto" for groups in (8, 4))
DIVIDED = r", of which 2 each divide matrices \(--tensor\): 4 groups"


@pytest.mark.parametrize(
    ("shard", "tensor", "message"),
    [
        (8, 1, None),
        (4, 2, None),
        (3, 1, rf"train.shard = 3 for 8 devices{OF_EIGHT}\.$"),
        (8, 2, rf"train.shard = 8 for 8 devices{DIVIDED}{OF_FOUR}, or omit --tensor\.$"),
        (3, 2, rf"train.shard = 3 for 8 devices{DIVIDED}{OF_FOUR}\.$"),
    ],
)
def test_a_copy_on_so_many_ranks_that_do_not_divide_them_is_refused_by_what_does_not_go_together(
    shard, tensor, message
):
    work = replace(
        WORK, ranks=8, sharding="full" if shard == 8 and tensor == 1 else "hybrid", shard=shard, tensor=tensor
    )
    told = ""
    try:
        check_groups(work)
    except ConfigError as refused:
        told = f"{refused.given}; allowed: {refused.allowed}; fix: {refused.fix}"
    assert re.match(message or "$", told)


@pytest.mark.parametrize(
    ("model", "tensor", "message"),
    [
        ("30b-a3b", 2, "a model of type qwen3_moe; allowed: a dense model of one of the types llama, qwen2, qwen3"),
        ("0.5b", 4, "14 heads, 2 of keys and values, an MLP of 4864, a hidden state of 896; allowed: a divisor of all"),
    ],
)
def test_models_that_are_not_divided_are_refused(model, tensor, message):
    with pytest.raises(ConfigError, match=message):
        make_plan(model=model, algorithm="sft", gpus="8xh100", tensor=tensor)


def test_an_engine_that_does_not_fit_is_no_fit():
    """The keys and values of 512 rows of 4,096 tokens of a 70B model take 640 GiB, or 80 GiB on each of 8 devices."""
    settings = {
        "sampling.max_completion_length": 3840,
        "sampling.max_batch_rows": 512,
        "train.prompts_per_step": 64,
        "train.gradient_checkpointing": True,
    }
    how = {"engine": "separate", "engine_ranks": 8}
    plan = make_plan(None, settings, model="70b", algorithm="grpo", gpus="64xh100", **how)
    engine = plan.memory.phase("generate")
    assert engine is not None
    assert plan.verdict.needed == engine.bytes > 80 * 2**30
    assert not plan.verdict.fits
