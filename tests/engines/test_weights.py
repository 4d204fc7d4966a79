"""A copy of the policy's weights is the whole policy, adapters merged, and leaves the policy unchanged."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.catalogue import catalogue, few
from tests.engines.policies import CONFIGS, lora_model, tiny_model

from posttrain.engines.weights import copy_weights, merged_tensors, named_tensors, plain_copy
from posttrain.errors import PublishError

IDS = torch.tensor([[5, 9, 33, 4, 21]])


def outputs(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


@catalogue("name", CONFIGS)
def test_a_plain_copy_computes_what_the_policy_computes_and_shares_no_memory(name):
    policy = tiny_model(name)
    twin = plain_copy(policy, None)
    torch.testing.assert_close(outputs(twin), outputs(policy), rtol=0, atol=0)
    ours, theirs = ({t.data_ptr() for _, t in named_tensors(m) if t.numel()} for m in (policy, twin))
    assert not ours & theirs


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"use_rslora": True}, marks=pytest.mark.slow),
        {"use_dora": True},
        {"lora_bias": False, "modules_to_save": ["lm_head"]},
    ],
)
def test_a_copy_of_a_policy_with_adapters_is_what_peft_merges(settings):
    policy = lora_model(**settings)
    expected = dict(named_tensors(lora_model(**settings).merge_and_unload()))
    before = {name: tensor.clone() for name, tensor in named_tensors(policy)}
    found = dict(named_tensors(plain_copy(policy, None)))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-6, msg=name)
    for name, tensor in named_tensors(policy):
        assert torch.equal(tensor, before[name]), f"{name} was changed"


@pytest.mark.parametrize("name", few(["qwen2, tied", "gpt2, learned positions"], "qwen2, tied"))
@pytest.mark.parametrize(
    "settings", [{}, {"target_modules": ["embed_tokens", "wte", "q_proj"]}, {"modules_to_save": ["lm_head"]}]
)
def test_adapters_on_one_side_of_tied_embeddings_leave_the_other_side_alone(name, settings):
    policy = lora_model(name, **settings)
    torch.testing.assert_close(outputs(plain_copy(policy, None)), outputs(policy), rtol=0, atol=2e-5)


def test_tied_embeddings_stay_one_tensor_where_the_policy_has_one():
    twin = plain_copy(tiny_model("qwen2, tied"), None)
    assert twin.lm_head.weight is twin.model.embed_tokens.weight


def test_parameters_are_cast_and_buffers_are_not():
    """Rotary frequencies in bfloat16 would put later tokens at wrong positions."""
    policy = tiny_model()
    twin = plain_copy(policy, torch.bfloat16)
    assert {p.dtype for p in twin.parameters()} == {torch.bfloat16}
    assert {b.dtype for b in twin.buffers()} == {torch.float32}
    assert {p.dtype for p in policy.parameters()} == {torch.float32}
    assert not any(p.requires_grad for p in twin.parameters())


def test_copying_overwrites_every_parameter_and_buffer():
    policy, twin = lora_model(), plain_copy(lora_model(), None)
    for _, tensor in named_tensors(policy):
        tensor.data.add_(0.125)
    copy_weights(policy, twin)
    expected = dict(merged_tensors(policy))
    for name, tensor in named_tensors(twin):
        assert torch.equal(tensor, expected[name]), name


def test_a_name_that_only_one_side_has_is_refused():
    policy, other = tiny_model(), plain_copy(tiny_model(), None)
    del other.model.layers[1].mlp.up_proj
    other.register_buffer("surprise", torch.zeros(1))
    with pytest.raises(
        PublishError, match=r"lacks 1 tensors \(model\.layers\.1\.mlp\.up_proj\.weight\).*has 1 tensors \(surprise\)"
    ):
        copy_weights(policy, other)


def test_another_architecture_is_refused():
    with pytest.raises(PublishError, match="lacks"):
        copy_weights(tiny_model(), copy.deepcopy(tiny_model("gpt-neox")))
