"""Training on the stand-in for a GPU: where the host waits for the device, and which operations a GPU would refuse."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gpu.count_training import counted, page_of, run
from tests.gpu.scenarios import HONEST, QUICK, READ_IN_THE_LOOP, THOROUGH
from tests.tiny import tiny_model, tiny_tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM

pytestmark = [
    pytest.mark.slow,  # compiling the stand-in takes longer than training on it
    pytest.mark.skipif(
        shutil.which("g++") is None or torch.version.cuda is not None,
        reason="the stand-in is compiled, and takes the place of CUDA in a build of PyTorch that has none",
    ),
]

GRADIENT_NORM = "a number is read in train.optimizer.clip_gradients"
METRICS = "a copy to the host in train.metrics.read"
LOSSES = "a copy to the host in models.transfer.on_the_host"
"""Waits of an update, after its micro-batches; also of a pass without gradient, after all its work was queued."""
ONE_UPDATE = {GRADIENT_NORM: 1, METRICS: 1, LOSSES: 1}
WAITS = {
    "grpo, LoRA and reference": {**ONE_UPDATE, LOSSES: 2},
    "grpo, two updates": {GRADIENT_NORM: 2, METRICS: 2, LOSSES: 3},
    **{name: {GRADIENT_NORM: 2, METRICS: 1, LOSSES: 4} for name in ("ppo", "ppo, LoRA")},
    "ppo, shared critic": {GRADIENT_NORM: 2, METRICS: 1, LOSSES: 3},
    **{name: {**ONE_UPDATE, LOSSES: 2} for name in ("online_dpo", "kto", "clip_cov", "kl_cov", "grpo, top entropy")},
    "distillation": {**ONE_UPDATE, LOSSES: 3},
}
"""All waits of a step, for scenarios in which they differ from those of one update."""
LINEAR = [str(shape) for shape in ([32, 32], [16, 32], [64, 32], [32, 64])]
"""Shapes of the linear layers of the model."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpu")
    tiny_model(folder / "llama", num_hidden_layers=1)
    tokenizer = tiny_tokenizer()
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    torch.manual_seed(0)
    Qwen3ForCausalLM(
        Qwen3Config(vocab_size=len(tokenizer), **sizes, num_key_value_heads=2, head_dim=8, tie_word_embeddings=True)
    ).save_pretrained(folder / "qwen3")
    tokenizer.save_pretrained(folder / "qwen3")
    return folder


@pytest.fixture(scope="module")
def accounts(folder: Path) -> dict[str, Any]:
    return run(folder, QUICK)


# --- the stand-in finds faults ----------------------------------------------------------------------------------------


def test_a_number_that_is_read_in_the_loop_is_found_once_per_micro_batch(folder):
    honest, found = run(folder, READ_IN_THE_LOOP).values()
    more = {place: n for place, n in found["waits"].items() if n != honest["waits"].get(place)}
    assert more == {"a number is read in train.trainer._gradient": found["microbatches"]}


def test_a_blocking_copy_is_found(accounts):
    found = accounts["a blocking copy"]
    assert found["waits"]["a blocking copy to the device in train.trainer._gradient"] == found["microbatches"]


def test_a_tensor_on_the_cpu_is_refused_as_a_gpu_refuses_it(accounts):
    assert "tensors [[4, 32]] on the CPU beside tensors on the GPU" in accounts["a tensor on the CPU"]["wrong_device"]


def test_memory_that_is_written_to_while_it_is_copied_is_found(accounts):
    found = accounts["memory written to during a copy"]
    assert found["unsafe"] == found["microbatches"]


# --- what training does -----------------------------------------------------------------------------------------------


def assert_it_waits_where_it_is_known_to(name: str, account: dict[str, Any]) -> None:
    assert account["waits"] == WAITS.get(name, ONE_UPDATE), name
    assert account["unsafe"] == 0, name


@pytest.mark.parametrize("name", HONEST)
def test_the_host_waits_for_the_gpu_at_the_end_of_an_update_alone(name, accounts):
    assert_it_waits_where_it_is_known_to(name, accounts[name])


def test_so_it_does_with_every_kind_of_model_and_loss(folder):
    accounts = run(folder, THOROUGH)
    for name, account in accounts.items():
        assert_it_waits_where_it_is_known_to(name, account)
    by_grids = [operation for operation in accounts["grpo, float32"]["operations"] if "attn" in operation]
    assert by_grids == [], "FlashAttention does not support float32"


def test_waits_do_not_depend_on_the_number_of_micro_batches(accounts):
    several, one = accounts["grpo"], accounts["grpo, one micro-batch"]
    assert (several["microbatches"], one["microbatches"]) == (2, 1)
    assert several["waits"] == one["waits"]


def test_attention_of_a_layer_is_one_call_of_a_kernel_in_each_direction(accounts):
    found = accounts["grpo, one micro-batch"]["operations"]
    attention = {name: n for name, n in found.items() if "attn" in name or "softmax" in name or "attention" in name}
    assert attention == {"torch_attn._varlen_attn.default": 1, "torch_attn._varlen_attn_backward.default": 1}


def test_a_trained_weight_is_cast_once_in_a_micro_batch_and_a_frozen_one_never(accounts):
    assert accounts["grpo, one micro-batch"]["cast_matrices"]["[64, 32]"] == 2  # gate and up of the one layer
    frozen = accounts["grpo, LoRA and reference"]["cast_matrices"]
    assert {shape: n for shape, n in frozen.items() if shape in LINEAR} == {}


def test_the_optimizer_is_one_kernel_for_each_group_of_weights(accounts):
    assert accounts["grpo"]["operations"]["aten._fused_adamw_.default"] == 2


def test_what_is_copied_to_the_host_is_numbers_and_of_tokens_one_each(accounts):
    """Float64 losses and metrics of an update, for any rows, and one number per token for percentiles."""
    assert accounts["grpo"]["copies"]["to host"] < 8 * (100 + 8 * 32)


def test_the_page_has_the_numbers_that_are_counted(tmp_path):
    page = Path(__file__).parents[2] / "docs" / "gpu.md"
    assert page_of(counted(tmp_path)) in page.read_text(), "python -m tests.gpu.count_training"
