"""What the sampler makes of float32 weights in half precision: casts that are kept, or made for every product."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from tests.rollout.policies import Settings, random_prompts, tiny_tokenizer
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from posttrain.advise.plan.architecture import architecture_of
from posttrain.advise.plan.generate import casts
from posttrain.advise.plan.records import Adapters, Workload
from posttrain.rollout.local import LocalSampler

TOKENS = 6
CONFIG = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64,
)  # fmt: skip


class Casts(TorchDispatchMode):
    """Numbers of each weight that are cast from float32, by its shape."""

    def __init__(self, shapes: set[torch.Size]) -> None:
        super().__init__()
        self.shapes, self.seen = shapes, Counter[torch.Size]()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and out.dtype == torch.bfloat16 and args[0].shape in self.shapes:
            self.seen[args[0].shape] += 1
        return out


def casts_of_a_call(model: torch.nn.Module) -> int:
    """Numbers that one call of the sampler casts, of matrices of the model."""
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


def test_nothing_is_cast_where_there_is_nothing_to_cast():
    for fields in ({"precision": "float32"}, {"engine": "copy"}, {"ranks": 4, "sharding": "full"}):
        assert casts(workload(**fields)) == 0
