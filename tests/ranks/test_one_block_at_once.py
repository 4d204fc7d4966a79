"""No rank ever holds a whole model: memory is counted while it loads, trains, saves, publishes and writes the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.ranks.jobs import finish, start
from tests.tiny import tiny_model, tiny_tokenizer
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

RANKS = 2
SMALL_CHANGE = 100_000
"""Bytes of rows, records and buffers; a block has at least twice as many."""


def dense(folder: Path) -> Path:
    return tiny_model(folder, hidden_size=64, intermediate_size=192, num_hidden_layers=8)


def mixture(folder: Path) -> Path:
    """A mixture of experts, whose file has separate experts, and whose model one tensor."""
    tokenizer = tiny_tokenizer()
    config = Qwen3MoeConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,  # pyright: ignore[reportCallIssue]
        moe_intermediate_size=32,
        num_experts=8,
        num_experts_per_tok=2,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=[dense, mixture])
def counted(request, tmp_path_factory) -> list[dict[str, Any]]:
    """For each rank: bytes of its model, of a block and of a tensor; for each phase its largest allocation, its peak
    memory, and its memory before."""
    folder = request.param(tmp_path_factory.mktemp("counted"))
    finish(start(RANKS, "tests.ranks.counting", str(folder), str(folder / "out")))
    return [json.loads((folder / f"out.{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.slow
def test_the_largest_piece_of_memory_that_a_rank_takes_is_one_block(counted):
    for rank in counted:
        assert rank["model"] > 6 * rank["block"], "otherwise the test shows nothing"
        for name, (largest, _, _) in rank["spans"].items():
            assert 0 < largest <= 1.02 * rank["block"], name


@pytest.mark.slow
def test_beside_its_part_a_rank_holds_a_few_blocks_while_it_loads_and_two_tensors_while_it_publishes(counted):
    for rank in counted:
        beyond = {name: peak - before for name, (_, peak, before) in rank["spans"].items()}
        assert beyond["load"] < rank["model"] / RANKS + 3 * rank["block"] + SMALL_CHANGE
        assert beyond["publication"] < 2 * rank["tensor"] + SMALL_CHANGE
        assert beyond["checkpoint"] < rank["block"]
