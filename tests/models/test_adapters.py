"""Adapters start as the identity, are named by their linear layers, and give the reference when switched off."""

from __future__ import annotations

import pytest
import torch
from tests.catalogue import few
from tests.models.tiny_architectures import CONFIGS, gradients, one_row_at_a_time, rows, tiny_model

from posttrain.config import LoRAConfig
from posttrain.errors import ConfigError, ModelError
from posttrain.models.adapters import apply_lora, frozen_copy, reference_scope, trainable_parameters
from posttrain.models.forward import token_logprobs
from posttrain.models.forward_path import forward_path
from posttrain.models.policy import hold_in

LLAMA = "llama, grouped heads"
LENGTHS = [9, 3, 12]


def adapted(name: str = LLAMA, dtype: torch.dtype = torch.float64, **settings):
    """A model whose adapters differ from the identity."""
    model = apply_lora(tiny_model(name, dtype=dtype), LoRAConfig(rank=2, **settings))
    generator = torch.Generator().manual_seed(1)
    for name, parameter in trainable_parameters(model).items():
        if "lora_B" in name or "lora_embedding_B" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator).to(dtype) * 0.3
    return model.eval()


def test_new_adapters_change_nothing_and_are_all_that_is_trained():
    plain = tiny_model(LLAMA)
    tokens, mask_BT = rows(LENGTHS)
    expected = token_logprobs(plain, tokens, mask_BT, temperature=1.0).logprobs_BT.detach()
    model = apply_lora(plain, LoRAConfig(rank=3))
    assert torch.equal(token_logprobs(model, tokens, mask_BT, temperature=1.0).logprobs_BT, expected)
    trained = trainable_parameters(model)
    assert trained
    assert all(".lora_" in name for name in trained)
    assert len(trained) == 2 * 7 * 2  # A and B, seven linear layers in each of two layers, none on the head


@pytest.mark.parametrize("name", few([LLAMA, "gpt2, learned positions", "qwen2, tied"], LLAMA))
def test_adapters_are_float32_and_depend_on_the_seed_alone(name):
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first, again, other = (
        trainable_parameters(apply_lora(tiny_model(name, dtype=torch.float32), LoRAConfig(rank=2), seed=seed))
        for seed in (0, 0, 1)
    )
    assert {p.dtype for p in first.values()} == {torch.float32}
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "name",
    few(
        [LLAMA, "gpt2, learned positions", "gemma2, soft caps and sliding window", "qwen3-moe, experts"],
        *("gpt2, learned positions", "qwen3-moe, experts"),
    ),
)
def test_the_packed_forward_pass_goes_through_the_adapters(name):
    model = adapted(name)
    tokens, mask_BT = rows(LENGTHS)
    expected, _ = one_row_at_a_time(model, tokens, mask_BT, temperature=1.0)
    actual = token_logprobs(model, tokens, mask_BT, temperature=1.0).logprobs_BT
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)
    for a, e in zip(gradients(actual.sum(), model), gradients(expected.sum(), model), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-6)


def test_an_adapter_on_the_head_is_part_of_the_log_probability():
    model = adapted(target_modules=["lm_head", "q_proj"])
    tokens, mask_BT = rows(LENGTHS)
    forward_path(model)
    expected, _ = one_row_at_a_time(model, tokens, mask_BT, temperature=1.0)
    actual = token_logprobs(model, tokens, mask_BT, temperature=1.0, chunk_tokens=4).logprobs_BT
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)
    with model.disable_adapter():
        assert not torch.allclose(token_logprobs(model, tokens, mask_BT, temperature=1.0).logprobs_BT, actual)


def test_the_reference_is_the_base_model():
    base = token_logprobs(tiny_model(LLAMA), *rows(LENGTHS), temperature=1.0).logprobs_BT
    model = adapted()
    policy = token_logprobs(model, *rows(LENGTHS), temperature=1.0).logprobs_BT
    trained = list(trainable_parameters(model))
    with torch.no_grad(), reference_scope(model) as reference:
        torch.testing.assert_close(token_logprobs(reference, *rows(LENGTHS), temperature=1.0).logprobs_BT, base)
    assert not torch.allclose(policy, base)
    assert torch.equal(token_logprobs(model, *rows(LENGTHS), temperature=1.0).logprobs_BT, policy)
    assert list(trainable_parameters(model)) == trained


@pytest.mark.parametrize("name", [LLAMA, "qwen3-moe, experts"])
def test_gradient_checkpointing_works_with_adapters(name):
    model = adapted(name)
    tokens, mask_BT = rows(LENGTHS)
    expected = gradients(token_logprobs(model, tokens, mask_BT, temperature=1.0).logprobs_BT.sum(), model)
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    actual = gradients(token_logprobs(model, tokens, mask_BT, temperature=1.0).logprobs_BT.sum(), model)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def test_a_frozen_copy_does_not_follow_the_policy():
    model = tiny_model(LLAMA)
    reference = frozen_copy(model)
    before = token_logprobs(reference, *rows(LENGTHS), temperature=1.0).logprobs_BT
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1
    after = token_logprobs(reference, *rows(LENGTHS), temperature=1.0).logprobs_BT
    assert torch.equal(after, before)
    assert not after.requires_grad
    assert trainable_parameters(reference) == {}


def test_trainable_parameters_list_a_tied_weight_once():
    model = tiny_model("qwen2, tied")
    names = list(trainable_parameters(model))
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names


def test_a_module_that_is_not_there_is_refused_with_the_names_that_are():
    with pytest.raises(ConfigError, match="no linear layer named 'query'; allowed: down_proj, gate_proj") as caught:
        apply_lora(tiny_model(LLAMA), LoRAConfig(target_modules=["q_proj", "query"]))
    assert "v_proj" in str(caught.value)


def test_what_peft_refuses_is_a_setting_to_change():
    with pytest.raises(ConfigError, match=r"lora cannot be applied to Qwen3MoeForCausalLM: .*lora_dropout != 0"):
        apply_lora(tiny_model("qwen3-moe, experts"), LoRAConfig(dropout=0.1))


def test_a_tied_head_cannot_be_adapted():
    with pytest.raises(ConfigError, match="names the head 'lm_head', which shares its weights with the embedding"):
        apply_lora(tiny_model("qwen2, tied"), LoRAConfig(target_modules=["lm_head"]))


def test_a_model_without_adapters_has_no_reference_inside():
    with (
        pytest.raises(ModelError, match="has no adapters to switch off"),
        reference_scope(tiny_model(LLAMA)),
    ):
        pass


@pytest.mark.parametrize("name", few(CONFIGS, "gpt2, learned positions", "qwen3-moe, experts", "qwen2, tied"))
def test_linear_layers_of_a_frozen_model_in_bfloat16_give_the_same_bits_and_take_half_the_memory(name):
    """Under the autocast of a run with precision bfloat16."""
    tokens, mask_BT = rows(LENGTHS)
    model = frozen_copy(tiny_model(name, dtype=torch.float32))
    held = hold_in(frozen_copy(model), torch.bfloat16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected, found = (token_logprobs(one, tokens, mask_BT, temperature=1.0).logprobs_BT for one in (model, held))
    assert torch.equal(found, expected), name
    saved = {p: p.nbytes for p in model.parameters()}
    smaller = [p for p, q in zip(model.parameters(), held.parameters(), strict=True) if q.nbytes * 2 == saved[p]]
    assert smaller, name
    assert held.get_input_embeddings().weight.dtype == held.get_output_embeddings().weight.dtype == torch.float32
    assert all(
        torch.equal(p, q)
        for p, q in zip(model.parameters(), hold_in(frozen_copy(model), torch.float32).parameters(), strict=True)
    )
