"""Models whose weights stay in their files until needed are, bit by bit, equal to models that are read immediately."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.catalogue import few
from tests.models.tiny_architectures import CONFIGS, PADDED, tiny_model
from tests.tiny import tiny_model as tiny_llama
from tests.tiny import tiny_tokenizer

from posttrain.config import LoRAConfig, ModelConfig
from posttrain.errors import NonFiniteError
from posttrain.models.adapters import apply_lora
from posttrain.models.load import LoadedModel, load_model
from posttrain.models.modes import ComputingWide
from posttrain.models.policy import hold_in
from posttrain.models.reward_head import load_reward_model
from posttrain.models.unread import fill, is_unread

ROPES = [
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 1e4,
     "original_max_position_embeddings": 32},
    {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 16},
    {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
]  # fmt: skip


def both_ways(folder: Path, load=load_model, **how) -> tuple[LoadedModel, LoadedModel]:
    config = ModelConfig(path=str(folder), device="cpu")
    whole, left = load(config, **how), load(config, in_parts=True, **how)
    assert not is_unread(whole.model)
    return whole, left


def assert_equal(whole: torch.nn.Module, left: torch.nn.Module) -> None:
    for part in ("named_parameters", "named_buffers"):
        ours, theirs = (dict(getattr(model, part)(remove_duplicate=False)) for model in (whole, left))
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            assert tensor.dtype == theirs[name].dtype, name
            assert torch.equal(tensor, theirs[name]), name
    assert len(list(whole.parameters())) == len(list(left.parameters())), "tied weights are one"


QUICK = ("qwen2, tied", "gpt2, learned positions", "gemma3, sliding window", "mamba, state space")
EXPERTS = ("qwen3-moe, experts", "gpt-oss, sinks")


@pytest.mark.parametrize("name", few([*CONFIGS, *PADDED], *QUICK, *EXPERTS))
def test_every_architecture_has_the_same_weights_and_buffers(tmp_path, name):
    tiny_model(name, dtype=torch.bfloat16).save_pretrained(tmp_path, max_shard_size="8KB")
    tiny_tokenizer().save_pretrained(tmp_path)
    whole, left = both_ways(tmp_path)
    assert is_unread(left.model)
    assert {parameter.device.type for parameter in left.model.parameters()} == {"meta"}
    fill(left.model)
    assert_equal(whole.model, left.model)
    assert whole.model.generation_config.to_dict() == left.model.generation_config.to_dict()


@pytest.mark.parametrize("rope", ROPES, ids=[str(rope["rope_type"]) for rope in ROPES])
def test_frequencies_of_rotary_positions_are_those_that_the_config_asks_for(tmp_path, rope):
    tiny_llama(tmp_path, rope_parameters=rope)
    whole, left = both_ways(tmp_path)
    fill(left.model)
    assert_equal(whole.model, left.model)


@pytest.mark.parametrize("same", [True, False])
def test_a_head_that_is_in_the_files_beside_its_embedding_is_tied_where_the_two_are_equal(tmp_path, same):
    tiny_llama(tmp_path, tie_word_embeddings=True)
    weights = load_file(tmp_path / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"] + (0 if same else 1)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    whole, left = both_ways(tmp_path)
    fill(left.model)
    assert_equal(whole.model, left.model)
    head, embedding = (left.model.get_parameter(f"{name}.weight") for name in ("lm_head", "model.embed_tokens"))
    assert (head is embedding) == same


def test_weights_are_found_by_names_without_the_prefix_of_the_body(tmp_path):
    tiny_llama(tmp_path)
    weights = {name.removeprefix("model."): x for name, x in load_file(tmp_path / "model.safetensors").items()}
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    whole, left = both_ways(tmp_path)
    fill(left.model)
    assert_equal(whole.model, left.model)


def test_adapters_and_a_new_head_start_as_they_do_on_a_model_that_was_read(tmp_path):
    tiny_llama(tmp_path)
    whole, left = (apply_lora(one.model, LoRAConfig(rank=2), seed=3) for one in both_ways(tmp_path))
    fill(left.get_base_model())
    assert_equal(whole, left)
    assert any(parameter.requires_grad for parameter in left.parameters())
    whole, left = (one.model for one in both_ways(tmp_path, load_reward_model, seed=4))
    fill(left)
    assert_equal(whole, left)


def test_frozen_layers_are_read_in_the_precision_in_which_they_are_held(tmp_path):
    tiny_llama(tmp_path)
    whole, left = (hold_in(one.model.requires_grad_(False), torch.bfloat16) for one in both_ways(tmp_path))
    fill(left)
    assert_equal(whole, left)
    ids_12 = torch.tensor([[3, 4]])
    with torch.no_grad(), ComputingWide():
        logits = left(input_ids=ids_12).logits
    assert logits.dtype == torch.float32
    assert "forward" not in vars(left.get_submodule("model.layers.0.mlp.up_proj"))


def test_a_model_in_another_form_is_read_whole_and_a_note_says_why(tmp_path):
    tiny_llama(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    torch.save(weights, tmp_path / "pytorch_model.bin")
    left = load_model(ModelConfig(path=str(tmp_path), device="cpu"), in_parts=True)
    assert not is_unread(left.model)
    assert f"each device reads all of {tmp_path} before it keeps its part" in " ".join(left.notes)


def test_weights_that_are_not_finite_are_refused_when_they_are_read(tmp_path):
    tiny_llama(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.norm.weight"][0] = torch.nan
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    left = load_model(ModelConfig(path=str(tmp_path), device="cpu"), in_parts=True)
    with pytest.raises(NonFiniteError, match=r"1 of the 32 numbers of model\.norm\.weight"):
        fill(left.model)
