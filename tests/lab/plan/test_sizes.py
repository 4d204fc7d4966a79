"""`auto` on a GPU: the largest sizes that surely fit, by the formulas of the planner."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from posttrain.config import load_config
from posttrain.lab.plan import before_run
from posttrain.lab.plan.api import make_plan, surely_fits, workload_for
from posttrain.lab.plan.sizes import ROWS, TOKENS, sized
from posttrain.lab.plan.target import gpu_here

GIB = 2**30
OPEN = {
    "model": "0.5b",
    "algorithm": "grpo",
    "data": {"train": "train.jsonl"},
    "rewards": [{"name": "math"}],
    "sampling": {"group_size": 16, "max_completion_length": 1024},
    "train": {"steps": 1, "prompts_per_step": 64},
}


@pytest.mark.parametrize("gpus", ["rtx-4090", "a100-40gb", "h100"])
def test_the_chosen_sizes_surely_fit_and_the_next_ones_may_not(gpus):
    plan = make_plan(OPEN, gpus=gpus)
    tokens, rows = plan.workload.tokens_per_microbatch, plan.workload.max_batch_rows
    assert plan.verdict.answer == "yes"
    assert tokens in TOKENS
    assert rows in ROWS
    for name, size, sizes in (("tokens_per_microbatch", tokens, TOKENS), ("max_batch_rows", rows, ROWS)):
        if size != sizes[0]:
            larger = replace(plan.workload, **{name: 2 * size})
            assert not surely_fits(plan.config, plan.target, larger), name


def test_a_larger_card_takes_more_at_once():
    small, large = (make_plan(OPEN, gpus=name).workload for name in ("rtx-4090", "h100"))
    assert small.tokens_per_microbatch < large.tokens_per_microbatch
    assert small.max_batch_rows <= large.max_batch_rows


def test_what_is_given_stays_and_a_cpu_has_its_own_numbers():
    given = {"train.tokens_per_microbatch": 3000, "sampling.max_batch_rows": 7}
    workload = make_plan(OPEN, given, gpus="h100").workload
    assert (workload.tokens_per_microbatch, workload.max_batch_rows) == (3000, 7)
    workload = make_plan(OPEN, {"model.device": "cpu"}).workload
    assert (workload.tokens_per_microbatch, workload.max_batch_rows) == (2048, 64)


def test_nothing_is_larger_than_a_step_needs_and_where_nothing_fits_it_is_as_on_a_cpu():
    config = load_config(OPEN, {"train.prompts_per_step": 1, "sampling.group_size": 2}).config
    plan = make_plan(config, gpus="h100")
    update = plan.workload.rows * plan.workload.row_tokens
    assert update <= plan.workload.tokens_per_microbatch < 2 * update
    assert plan.workload.max_batch_rows == 64
    plain = replace(plan.workload, tokens_per_microbatch=2048, max_batch_rows=64)
    assert sized(plain, config, lambda workload: False) == plain


def test_a_run_asks_for_what_is_free_on_its_card(monkeypatch):
    """The rule is the plan's, applied to hardware as the driver reports it."""
    config = load_config(OPEN).config
    monkeypatch.setattr(before_run, "choose_device", lambda asked: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    found = []
    for free in (79, 24):
        card = gpu_here("NVIDIA H100 80GB HBM3", total=80 * GIB, free=free * GIB)
        monkeypatch.setattr(before_run, "_hardware", lambda device, card=card: card)
        sizes = before_run.sizes_here(config)
        target = before_run.with_lengths(config, before_run.target_here(config))
        workload = workload_for(config, target)
        assert sizes == {
            "train.tokens_per_microbatch": workload.tokens_per_microbatch,
            "sampling.max_batch_rows": workload.max_batch_rows,
        }
        found.append(sizes["train.tokens_per_microbatch"])
    assert found[0] > found[1]
    monkeypatch.undo()
    assert before_run.sizes_here(load_config(OPEN, {"model.device": "cpu"}).config) == {}
