"""Frozen layers stored in the precision of their products: all computed, saved and sent values stay the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from tests.engines.second_device import OnDevice, moved, second_device
from tests.models.tiny_architectures import CONFIGS
from tests.tiny import tiny_model
from torch import nn

from posttrain.config import LoRAConfig, ModelConfig
from posttrain.engines.weights import merged_tensors
from posttrain.models.adapters import apply_lora, trainable_parameters
from posttrain.models.forward import token_logprobs
from posttrain.models.load import LoadedModel, load_model
from posttrain.models.policy import hold_in
from posttrain.models.save import merged_weights, save_model
from posttrain.types import Tokens

TOKENS = Tokens(input_ids_BT=torch.tensor([[3, 9, 4, 7, 5], [3, 9, 8, 6, 0]]), lengths_B=torch.tensor([5, 4]))
MASK_BT = torch.tensor([[False, False, True, True, True], [False, False, True, True, False]])


@pytest.fixture
def loaded(tmp_path) -> LoadedModel:
    return load_model(ModelConfig(path=str(tiny_model(tmp_path / "model")), device="cpu"))


def with_adapters(loaded: LoadedModel, targets: str | list[str] = "all-linear") -> PeftModel:
    model = apply_lora(loaded.model, LoRAConfig(rank=2, target_modules=targets))  # type: ignore[arg-type]
    for name, parameter in trainable_parameters(model).items():
        if "lora_B" in name:  # these start as zeros
            nn.init.normal_(parameter, std=0.02, generator=torch.Generator().manual_seed(1))
    return model


def learned(model: PeftModel) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    with torch.autocast("cpu", torch.bfloat16):
        logprobs_BT = token_logprobs(model, TOKENS, MASK_BT, temperature=1.0).logprobs_BT
    trained = trainable_parameters(model)
    gradients = torch.autograd.grad(logprobs_BT.sum(), list(trained.values()))
    return logprobs_BT.detach(), dict(zip(trained, gradients, strict=True))


def test_the_base_of_adapters_gives_the_same_bits_and_so_does_every_gradient(loaded):
    model = with_adapters(loaded)
    expected = learned(model)
    held = hold_in(model, torch.bfloat16)
    found = learned(held)
    assert torch.equal(found[0], expected[0])
    assert all(torch.equal(found[1][name], gradient) for name, gradient in expected[1].items())
    assert {p.dtype for p in trainable_parameters(held).values()} == {torch.float32}
    assert {p.dtype for name, p in held.named_parameters() if "base_layer" in name} == {torch.bfloat16}


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj"]], ids=["everywhere", "on some layers"])
def test_a_saved_model_is_float32_and_has_the_numbers_that_were_computed_with(loaded, targets, tmp_path):
    model = hold_in(with_adapters(loaded, targets), torch.bfloat16)
    save_model(model, loaded.tokenizer, tmp_path / "saved", eos_ids=loaded.eos_ids, pad_id=loaded.pad_id)
    saved = load_file(tmp_path / "saved/model.safetensors")
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}
    layer: Any = model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj")
    base, change = layer.base_layer.weight, layer.get_delta_weight("default")
    assert torch.equal(saved["model.layers.0.self_attn.q_proj.weight"], base.float() + change)
    below = saved["model.layers.0.mlp.up_proj.weight"]
    assert torch.equal(below, below.bfloat16().float()) == (targets != "all-linear")


def test_what_is_saved_of_a_gpu_is_widened_in_main_memory(loaded):
    """Tensors that already have their precision are copied on writing: the GPU holds no second base."""
    model = hold_in(with_adapters(loaded, ["q_proj"]), torch.bfloat16)
    expected = merged_weights(model)
    with second_device() as device:
        on_device = moved(model)
        device.forget()
        found = merged_weights(on_device)
        wide = {name for name, tensor in found.items() if isinstance(tensor, OnDevice)}
        assert wide == {name for name in found if "norm" in name or "embed_tokens" in name or "lm_head" in name}
        assert device.launches["cast to float32"] == 2, "q_proj of two layers, for the merge"
    assert all(torch.equal(expected[name], tensor) for name, tensor in found.items() if name not in wide)


def test_what_a_sampler_is_sent_is_what_is_saved(loaded):
    """The merge uses float32: in bfloat16, a step of 1e-4 in a weight of 1 would be lost."""
    model = hold_in(with_adapters(loaded), torch.bfloat16)
    sent = dict(merged_tensors(model))
    layer: Any = model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj")
    expected = layer.base_layer.weight.float() + layer.get_delta_weight("default")
    torch.testing.assert_close(sent["model.layers.0.self_attn.q_proj.weight"], expected, rtol=0, atol=1e-7)
    assert layer.base_layer.weight.dtype == torch.bfloat16, "the policy itself does not change"


def test_a_head_that_is_kept_keeps_its_precision():
    from transformers import AutoModelForSequenceClassification

    config = CONFIGS["llama, grouped heads"]()
    config.num_labels = 1
    model = AutoModelForSequenceClassification.from_config(config).requires_grad_(False).eval()
    held = hold_in(model, torch.bfloat16, keep=model.score)
    assert held.score.weight.dtype == torch.float32
    assert held.model.layers[0].mlp.up_proj.weight.dtype == torch.bfloat16
