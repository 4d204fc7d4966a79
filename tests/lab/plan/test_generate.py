"""Copies and casts that the sampler makes of the policy's weights: for its products, and in half precision."""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tests.catalogue import few
from tests.engines.policies import Settings, random_prompts, tiny_tokenizer
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from posttrain.cpu.kernels import kernels
from posttrain.cpu.plain_decoder import PlainDecoder
from posttrain.engines.local import LocalSampler
from posttrain.lab.plan.architecture import architecture_of
from posttrain.lab.plan.generate import casts, joined_weights
from posttrain.lab.plan.records import Adapters, Workload

TOKENS = 6
CONFIG = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64,
)  # fmt: skip


class Casts(TorchDispatchMode):
    """Counts the numbers of each weight that are cast from float32, by shape."""

    def __init__(self, shapes: set[torch.Size]) -> None:
        super().__init__()
        self.shapes, self.seen = shapes, Counter[torch.Size]()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and out.dtype == torch.bfloat16 and args[0].shape in self.shapes:
            self.seen[args[0].shape] += 1
        return out


def casts_of_a_call(model: torch.nn.Module) -> int:
    """Return how many numbers of the model's matrices one call of the sampler casts."""
    shapes = {parameter.shape for parameter in model.parameters() if parameter.dim() == 2}
    sampler = LocalSampler(model, tiny_tokenizer(), (), shared=True, dtype=torch.bfloat16)
    prompts, settings = random_prompts((3,)), Settings(max_completion_length=TOKENS)
    sampler.generate(prompts, settings, group_size=2, seed=0)
    with Casts(shapes) as counted:
        sampler.generate(prompts, settings, group_size=2, seed=1)
    return sum(shape.numel() * times for shape, times in counted.seen.items())


def workload(**fields: Any) -> Workload:
    shape = architecture_of(CONFIG.to_dict())
    return Workload(architecture=shape, algorithm="grpo", needs=frozenset(), **{"precision": "bfloat16", **fields})


def test_trained_weights_are_cast_once_in_a_call_and_kept():
    model = LlamaForCausalLM(CONFIG)
    assert 2 * casts_of_a_call(model) == casts(workload())


def test_frozen_weights_are_cast_for_every_token_and_only_adapters_are_kept():
    model = LlamaForCausalLM(CONFIG)
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear"))
    matrices = casts(workload()) // 2
    adapters = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert casts_of_a_call(adapted) == TOKENS * matrices + adapters
    head = 64 * 32
    assert casts(workload(lora=Adapters(rank=4))) == 2 * (adapters + head)


def test_a_gpu_holds_casts_of_what_is_trained():
    model = LlamaForCausalLM(CONFIG)
    assert casts(workload(device="cuda")) == 2 * sum(p.numel() for p in model.parameters())
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear"))
    numbers = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert casts(workload(device="cuda", lora=Adapters(rank=4))) == 2 * numbers


def test_nothing_is_cast_where_there_is_nothing_to_cast():
    for fields in ({"precision": "float32"}, {"engine": "copy"}, {"ranks": 4, "sharding": "full"}):
        assert casts(workload(**fields)) == 0


# --- copies of weights -----------------------------------------------------------------------------------------------

SIZES: dict[str, Any] = {
    "vocab_size": 2048, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 64,
}  # fmt: skip
WIDE: dict[str, Any] = {"hidden_size": 512, "intermediate_size": 2304, "num_hidden_layers": 1}
"""Gate and up together have over two million weights, but each alone has fewer."""


def numbers_held_by(model: torch.nn.Module) -> int:
    """Count the numbers in copies of matrices that a decoder makes and keeps as long as it lives."""
    before = [found for found in gc.get_objects() if isinstance(found, torch.Tensor)]
    known = {id(found) for found in before}
    decoder = PlainDecoder(model, kernels())
    made = [found for found in gc.get_objects() if isinstance(found, torch.Tensor) and id(found) not in known]
    held = {found.untyped_storage().data_ptr(): found.numel() for found in made}
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    del decoder
    return sum(numbers for place, numbers in held.items() if place not in own and numbers > max(WIDE.values()))


DECODERS = {
    "tied": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "large head": LlamaConfig(**SIZES | {"vocab_size": 20_000}),
    "large together": LlamaConfig(**SIZES | WIDE),
    "biases": Qwen2Config(**SIZES),
    "norms of heads": Qwen3Config(**SIZES),
    "experts": Qwen3MoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64),
}
ADAPTED = [(), ("q", "v"), ("gate",), ("o", "up", "down")]


@pytest.mark.skipif(kernels() is None, reason="this machine has no compiler: nothing is copied for kernels")
@pytest.mark.parametrize(
    "adapted", [(), *(pytest.param(each, marks=pytest.mark.slow) for each in ADAPTED[1:3]), ADAPTED[3]], ids=" ".join
)
@pytest.mark.parametrize("kind", few(DECODERS, "tied", "large together", "experts"))
def test_as_many_weights_are_planned_to_be_copied_as_a_decoder_copies(kind: str, adapted: tuple[str, ...]):
    if kind == "experts":
        adapted = tuple(
            name for name in adapted if name in "qvo"
        )  # peft does not adapt experts, since they are not layers
    config = DECODERS[kind]
    model: Any = AutoModelForCausalLM.from_config(config)
    if adapted:
        model = get_peft_model(model, LoraConfig(r=4, target_modules=[f"{name}_proj" for name in adapted]))
    lora = Adapters(rank=4, targets=adapted) if adapted else None
    shape = architecture_of(config.to_dict())
    planned = Workload(architecture=shape, algorithm="grpo", needs=frozenset(), lora=lora)
    assert 4 * numbers_held_by(model) == joined_weights(planned)
