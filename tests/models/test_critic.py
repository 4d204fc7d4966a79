"""The critic reads a value before its token, with any trunk. An adapter on the policy's base leaves the policy
unchanged, learns separately, and takes little extra memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from tests.tiny import tiny_model
from torch import Tensor, nn

from posttrain.config import LoRAConfig, ModelConfig
from posttrain.data.collate import collate
from posttrain.models.adapters import adapter_scope, apply_lora, reference_scope
from posttrain.models.critic import (
    ADAPTER,
    Critic,
    lora_critic,
    recompute_with_its_adapter,
    separate_critic,
    shared_critic,
)
from posttrain.models.forward import token_logprobs
from posttrain.models.load import load_model
from posttrain.models.reward_head import load_reward_model
from posttrain.models.save import merged_weights, save_model

TOKENS, MASK_BT = collate([([4, 5, 6], [7, 8, 9, 10]), ([11, 12], [13]), ([5, 5, 5, 5], [])], pad_id=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("critic") / "model")


@pytest.fixture
def config(folder) -> ModelConfig:
    return ModelConfig(path=str(folder), device="cpu")


@pytest.fixture
def policy(config) -> nn.Module:
    return load_model(config).model


@pytest.fixture
def adapted(policy) -> PeftModel:
    return apply_lora(policy, LoRAConfig(rank=4), seed=0).eval()


def logprobs(model: nn.Module) -> Tensor:
    return token_logprobs(model, TOKENS, MASK_BT, temperature=1.0).logprobs_BT


def move(critic: Critic) -> None:
    """Change the critic's weights, so that its adapter is no identity."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in critic.parameters.values():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))


def plain_values(body: nn.Module, head: nn.Linear) -> Tensor:
    """The values row by row without packing: the head on the hidden state one place before each scored token."""
    values_BT = torch.zeros(MASK_BT.shape)
    for row, length in enumerate(TOKENS.lengths_B.tolist()):
        hidden_TD = body(input_ids=TOKENS.input_ids_BT[row : row + 1, :length]).last_hidden_state[0]
        for t in MASK_BT[row].nonzero().flatten().tolist():
            values_BT[row, t] = head(hidden_TD[t - 1])[0]
    return values_BT


# --- what a value is --------------------------------------------------------------------------------------------------


def test_a_value_is_read_before_its_token(config):
    loaded = load_reward_model(config, seed=0)
    critic = separate_critic(loaded)
    move(critic)
    torch.testing.assert_close(critic(TOKENS, MASK_BT), plain_values(loaded.model.model, critic.head))


def test_the_token_itself_does_not_change_its_value(config):
    critic = separate_critic(load_reward_model(config, seed=0))
    before_BT = critic(TOKENS, MASK_BT)
    other, _ = collate([([4, 5, 6], [7, 8, 9, 20]), ([11, 12], [21]), ([5, 5, 5, 5], [])], pad_id=0)
    torch.testing.assert_close(critic(other, MASK_BT), before_BT)
    changed_earlier, _ = collate([([4, 5, 6], [20, 8, 9, 10]), ([11, 12], [13]), ([5, 5, 5, 5], [])], pad_id=0)
    assert (critic(changed_earlier, MASK_BT) - before_BT)[0, 4:].abs().min() > 0


def test_a_shared_critic_reads_the_policys_trunk_in_the_policys_pass(policy):
    critic = shared_critic(policy, seed=0)
    outputs = token_logprobs(policy, TOKENS, MASK_BT, temperature=1.0, value_head=critic.head)
    assert outputs.values_BT is not None
    torch.testing.assert_close(outputs.values_BT, plain_values(policy.model, critic.head))
    torch.testing.assert_close(critic(TOKENS, MASK_BT), outputs.values_BT)
    assert torch.equal(outputs.logprobs_BT, logprobs(policy))
    assert sum(p.numel() for p in critic.parameters.values()) == 33


def test_an_adapters_value_is_that_of_the_base_with_the_adapter(adapted):
    critic = lora_critic(adapted, rank=2, alpha=4, seed=0)
    torch.testing.assert_close(critic(TOKENS, MASK_BT), plain_values(adapted.get_base_model().model, critic.head))
    move(critic)
    with adapter_scope(adapted, ADAPTER):
        expected_BT = plain_values(adapted.get_base_model().model, critic.head)
    torch.testing.assert_close(critic(TOKENS, MASK_BT), expected_BT)


@pytest.mark.parametrize("with_head", [True, False])
def test_nothing_scored_is_zero_and_can_be_differentiated(policy, with_head):
    critic, nothing_BT = shared_critic(policy, seed=0), torch.zeros_like(MASK_BT)
    outputs = token_logprobs(policy, TOKENS, nothing_BT, temperature=1.0, value_head=critic.head if with_head else None)
    assert (outputs.values_BT is not None) == with_head
    values_BT = critic(TOKENS, nothing_BT)
    values_BT.sum().backward()
    assert values_BT.abs().sum() == 0


def test_a_new_head_is_small_and_a_function_of_the_seed_alone(policy):
    state = torch.get_rng_state()
    first, again, other = (shared_critic(policy, seed=seed).head.weight for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.abs().max() < 4 / 33


# --- an adapter with the policy's base --------------------------------------------------------------------------------


def test_the_critics_adapter_leaves_policy_and_reference_alone(adapted):
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(1))
    before_BT, merged = logprobs(adapted), merged_weights(adapted)
    with reference_scope(adapted):
        reference_BT = logprobs(adapted)
    critic = lora_critic(adapted, rank=2, alpha=4, seed=0)
    move(critic)
    critic(TOKENS, MASK_BT)
    assert torch.equal(logprobs(adapted), before_BT)
    assert adapted.active_adapter == "default"
    with reference_scope(adapted):
        assert torch.equal(logprobs(adapted), reference_BT)
    for name, tensor in merged_weights(adapted).items():
        assert torch.equal(tensor, merged[name]), name


def test_one_backward_pass_reaches_both_adapters_and_not_the_base(adapted):
    critic = lora_critic(adapted, rank=2, alpha=4, seed=0)
    move(critic)
    with reference_scope(adapted), torch.no_grad():
        logprobs(adapted)  # peft freezes what it switches off
    loss = logprobs(adapted).sum() + critic(TOKENS, MASK_BT).sum()
    loss.backward()
    trained = {name for name, parameter in adapted.named_parameters() if parameter.grad is not None}
    assert {name for name in trained if ADAPTER in name} == {n for n in critic.parameters if "value_head" not in n}
    assert {name for name in trained if ".default." in name}
    assert all("lora_" in name for name in trained)
    assert critic.head.weight.grad is not None


def test_what_is_recomputed_in_the_backward_pass_has_the_adapter_that_it_was_computed_with(adapted):
    critic = lora_critic(adapted, rank=2, alpha=4, seed=0)
    move(critic)

    def gradients() -> dict[str, Tensor]:
        adapted.zero_grad()
        adapted.train()
        (logprobs(adapted).sum() + critic(TOKENS, MASK_BT).square().sum()).backward()
        return {name: p.grad.clone() for name, p in adapted.named_parameters() if p.grad is not None}

    expected = gradients()
    recompute = {"use_reentrant": False, "context_fn": lambda: recompute_with_its_adapter(adapted)}
    adapted.gradient_checkpointing_enable(gradient_checkpointing_kwargs=recompute)
    found = gradients()
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, msg=lambda m, n=name: f"{n}: {m}")


def test_what_is_saved_is_the_policy(adapted, config, tmp_path):
    loaded = load_model(config)
    save_model(adapted, loaded.tokenizer, tmp_path / "before", eos_ids=loaded.eos_ids, pad_id=loaded.pad_id)
    saved = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    move(lora_critic(adapted, rank=2, alpha=4, seed=0))
    save_model(adapted, loaded.tokenizer, tmp_path / "after", eos_ids=loaded.eos_ids, pad_id=loaded.pad_id)
    again = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert [path.name for path in (tmp_path / "adapter").iterdir() if path.is_dir()] == []
    assert again.keys() == saved.keys()
    assert all(torch.equal(tensor, saved[name]) for name, tensor in again.items())
    merged = [load_file(tmp_path / name / "model.safetensors") for name in ("before", "after")]
    assert all(torch.equal(tensor, merged[0][name]) for name, tensor in merged[1].items())


def test_policy_reference_and_critic_take_little_more_than_one_model(tmp_path):
    """The model is wide enough that rank 4 is low: the adapters and the head add a tenth."""
    path = tiny_model(tmp_path / "wide", hidden_size=256, intermediate_size=512)
    policy = load_model(ModelConfig(path=str(path), device="cpu")).model
    one = sum(p.numel() for p in policy.parameters())
    adapted = apply_lora(policy, LoRAConfig(rank=4), seed=0)
    critic = lora_critic(adapted, rank=4, alpha=8, seed=0)
    all_three = sum(p.numel() for p in adapted.parameters()) + critic.head.weight.numel() + 1
    assert all_three < 1.1 * one
