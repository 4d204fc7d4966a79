"""Saved models load with plain transformers, give the policy's outputs, and are checked after writing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from tests.catalogue import few
from tests.models.tiny_architectures import CONFIGS, rows, tiny_model
from tests.models.tiny_folder import TEMPLATE, tiny_folder, tiny_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from posttrain.config import LoRAConfig, ModelConfig
from posttrain.errors import CheckpointError
from posttrain.models.adapters import apply_lora, trainable_parameters
from posttrain.models.forward import token_logprobs
from posttrain.models.load import load_model
from posttrain.models.save import merged_weights, save_model, verify_weights

SHARED_MODELS = Path(__file__).parents[3] / "shared/data/models"
LLAMA = "llama, grouped heads"
IDS = {"eos_ids": frozenset({2, 3}), "pad_id": 0}


def adapted(name: str = LLAMA, **settings) -> PeftModel:
    model = apply_lora(tiny_model(name, dtype=torch.float32), LoRAConfig(rank=2, **settings))
    generator = torch.Generator().manual_seed(1)
    for key, parameter in trainable_parameters(model).items():
        if "lora_B" in key:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    return model.eval()


def state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {key: tensor.clone() for key, tensor in model.state_dict().items()}


ADAPTED = (LLAMA, "qwen2, tied", "gpt2, learned positions", "qwen3-moe, experts")


@pytest.mark.parametrize("name", few(CONFIGS, "qwen2, tied", "gpt2, learned positions", "gpt-oss, sinks"))
def test_every_architecture_is_saved_as_it_is(name, tmp_path):
    """This includes models whose files split experts differently, and models that the forward pass has set to
    packed."""
    model = tiny_model(name, dtype=torch.float32)
    ids_BT = torch.arange(3, 13).view(1, -1)
    token_logprobs(model, *rows([5, 4]), temperature=1.0)
    before = state(model)
    saved = save_model(model, tiny_tokenizer(), tmp_path / "model", **IDS)
    assert saved.adapter is None
    opened = AutoModelForCausalLM.from_pretrained(saved.model, dtype=torch.float32)
    assert all(torch.equal(tensor, before[key]) for key, tensor in state(opened).items())
    assert all(torch.equal(tensor, before[key]) for key, tensor in state(model).items())
    with torch.no_grad():
        torch.testing.assert_close(opened(ids_BT).logits, model(ids_BT).logits)
    assert "packed" not in (saved.model / "config.json").read_text()


def test_a_saved_model_loads_as_the_same_model(tmp_path):
    first = load_model(ModelConfig(path=str(tiny_folder(tmp_path / "first"))), device="cpu")
    save_model(first.model, first.tokenizer, tmp_path / "second", eos_ids=first.eos_ids, pad_id=first.pad_id)
    second = load_model(ModelConfig(path=str(tmp_path / "second")), device="cpu")
    assert (second.eos_ids, second.pad_id, second.notes) == (first.eos_ids, first.pad_id, ())
    assert second.tokenizer.chat_template == TEMPLATE
    assert second.tokenizer("w9 w8")["input_ids"] == first.tokenizer("w9 w8")["input_ids"] == [9, 8]
    assert json.loads((tmp_path / "second/config.json").read_text())["dtype"] == "float32"


def test_the_generation_config_knows_every_eos_and_nothing_that_changes_greedy_answers(tmp_path):
    model = tiny_model(LLAMA, dtype=torch.float32)
    model.generation_config = GenerationConfig(
        eos_token_id=2, pad_token_id=2, do_sample=True, temperature=0.6, repetition_penalty=1.3, no_repeat_ngram_size=2
    )
    save_model(model, tiny_tokenizer(), tmp_path, **IDS)
    saved = GenerationConfig.from_pretrained(tmp_path)
    assert saved.eos_token_id == [2, 3]
    assert saved.pad_token_id == 0
    assert saved.temperature == 0.6
    assert not saved.repetition_penalty
    assert not saved.no_repeat_ngram_size
    assert model.generation_config.eos_token_id == 2, "the policy's own config does not change"


def test_greedy_answers_of_the_saved_model_are_those_of_the_policy(tmp_path):
    model = adapted()
    prompt = {"input_ids": torch.tensor([[9, 8, 7, 6]]), "attention_mask": torch.ones(1, 4, dtype=torch.long)}
    settings = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(**prompt, **settings)
    save_model(model, tiny_tokenizer(), tmp_path / "model", **IDS)
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert torch.equal(opened.generate(**prompt, **settings), expected)
    assert AutoTokenizer.from_pretrained(tmp_path / "model").decode(expected[0, :2]) == "w9 w8"


@pytest.mark.parametrize("name", few(ADAPTED, "gpt2, learned positions", "qwen3-moe, experts"))
def test_adapters_are_merged_into_a_copy_and_saved_beside_it(name, tmp_path):
    model = adapted(name)
    tokens, mask_BT = rows([9, 5])
    expected = token_logprobs(model, tokens, mask_BT, temperature=1.0).logprobs_BT
    before = state(model)
    saved = save_model(model, tiny_tokenizer(), tmp_path / "model", **IDS)

    after = state(model)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before), "the policy keeps every bit"
    merged = AutoModelForCausalLM.from_pretrained(saved.model)
    assert not any("lora" in key for key in merged.state_dict())
    actual = token_logprobs(merged, tokens, mask_BT, temperature=1.0).logprobs_BT
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)

    assert saved.adapter == tmp_path / "adapter"
    again = PeftModel.from_pretrained(tiny_model(name, dtype=torch.float32), str(saved.adapter)).eval()
    assert torch.equal(token_logprobs(again, tokens, mask_BT, temperature=1.0).logprobs_BT, expected)


def test_merging_adds_the_product_of_the_adapter_to_its_matrix():
    model = adapted(alpha=6)
    layer = model.get_base_model().model.layers[0].self_attn.q_proj
    product = layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    merged = merged_weights(model)
    expected = layer.base_layer.weight + 6 / 2 * product
    torch.testing.assert_close(merged["model.layers.0.self_attn.q_proj.weight"], expected.detach())
    assert merged.keys() == tiny_model(LLAMA).state_dict().keys()


def change_value(weights: dict[str, torch.Tensor]) -> None:
    weights["model.norm.weight"][0] += 1e-6


def drop(weights: dict[str, torch.Tensor]) -> None:
    weights.pop("model.norm.weight")


def reshape(weights: dict[str, torch.Tensor]) -> None:
    weights["model.norm.weight"] = weights["model.norm.weight"][:-1].clone()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change_value, r"model\.safetensors holds other values for model\.norm\.weight than the policy"),
        (drop, r"has no weight model\.norm\.weight"),
        (reshape, r"holds model\.norm\.weight as torch\.float32 \[15\]"),
    ],
)
def test_what_is_read_back_must_be_what_was_meant(damage, message, tmp_path):
    model = tiny_model(LLAMA, dtype=torch.float32)
    save_model(model, tiny_tokenizer(), tmp_path, **IDS)
    verify_weights(tmp_path, model, model.state_dict())
    weights = load_file(tmp_path / "model.safetensors")
    damage(weights)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=message):
        verify_weights(tmp_path, model, model.state_dict())


def test_fused_experts_are_verified_as_well(tmp_path):
    """Their files hold one matrix per expert, the module one tensor for all: the check compares loaded tensors."""
    model = tiny_model("qwen3-moe, experts", dtype=torch.float32)
    save_model(model, tiny_tokenizer(), tmp_path, **IDS)
    weights = load_file(tmp_path / "model.safetensors")
    assert weights.keys() != model.state_dict().keys()
    expert = next(key for key in weights if "experts.1.up_proj" in key)
    weights[expert] = weights[expert] + 1e-3
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"holds other values for model\.layers\.\d\.mlp\.experts"):
        verify_weights(tmp_path, model, model.state_dict())


def test_a_file_that_cannot_be_read_back_is_named(tmp_path):
    model = tiny_model(LLAMA, dtype=torch.float32)
    save_model(model, tiny_tokenizer(), tmp_path, **IDS)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read"):
        verify_weights(tmp_path, model, model.state_dict())


def test_a_real_model_survives_saving(tmp_path):
    path = SHARED_MODELS / "stories260K"
    if not path.is_dir():
        pytest.skip("no shared data: stories260K")
    loaded = load_model(ModelConfig(path=str(path)), device="cpu")
    saved = save_model(loaded.model, loaded.tokenizer, tmp_path / "model", eos_ids=loaded.eos_ids, pad_id=loaded.pad_id)
    opened = AutoModelForCausalLM.from_pretrained(saved.model)
    tokenizer = AutoTokenizer.from_pretrained(saved.model)
    prompt = tokenizer("Once upon a time", return_tensors="pt")
    settings = {"max_new_tokens": 20, "do_sample": False}
    assert torch.equal(opened.generate(**prompt, **settings), loaded.model.generate(**prompt, **settings))
