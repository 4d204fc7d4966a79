"""Mixtures of experts: which experts a token goes to, when it is sampled and when it is trained on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.catalogue import few
from tests.engines.policies import EOS, random_prompts, tiny_model, tiny_tokenizer, trainer_logprobs

from posttrain.engines.delivery import DeliveryProof, chosen_experts, routers, routing_difference
from posttrain.engines.local import LocalSampler
from posttrain.models.forward import token_logprobs
from posttrain.models.forward_path import forward_path
from posttrain.types import Mean, Tokens

MIXTURES = ["qwen3-moe, experts", "olmoe, experts"]
PROMPTS = [prompt.ids for prompt in random_prompts([50] * 80)]
COMPLETIONS = [ids[::-1][:8] for ids in PROMPTS]


def sampler_of(model, **settings) -> LocalSampler:
    return LocalSampler(model, tiny_tokenizer(), [EOS], **{"shared": False, "version": 1, **settings})


def difference(model, sampler: LocalSampler, rows: int = len(PROMPTS)) -> Mean:
    forward_path(model)
    sampler.score(PROMPTS[:1], COMPLETIONS[:1], temperature=1.0)
    with torch.no_grad():
        found = routing_difference(model, scoring(model), sampler.routes, PROMPTS[:rows], COMPLETIONS[:rows])
    return found["mismatch/routing_difference"]


def scoring(model) -> Callable[..., object]:
    """A function that passes one row through the trained model."""
    logprobs = trainer_logprobs(model)
    return lambda prompt, completion: logprobs([prompt], [completion], temperature=1.0)


@pytest.mark.parametrize("name", MIXTURES)
def test_each_token_goes_to_as_many_experts_as_configured_in_each_layer(name):
    model = tiny_model(name)
    with chosen_experts(model) as chosen, torch.no_grad():
        model(input_ids=torch.tensor([[5, 6, 7]]))
    first, second = chosen()
    assert first.shape == second.shape == (3, 2)
    assert (first[:, 0] < first[:, 1]).all(), "sorted, and no expert twice"


def test_a_dense_model_has_no_routers_and_no_such_metric():
    model = tiny_model("llama")
    assert routers(model) == []
    assert sampler_of(model).routes(PROMPTS[0], COMPLETIONS[0]) == []
    assert routing_difference(model, scoring(model), sampler_of(model).routes, PROMPTS[:2], COMPLETIONS[:2]) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rows"), few([(MIXTURES[0], 20), *((name, 80) for name in MIXTURES)], (MIXTURES[0], 20))
)
def test_in_float32_the_packed_pass_and_decoding_choose_the_same_experts(name, rows):
    """Every token in both layers, except the last token of each row, which predicts nothing."""
    model = tiny_model(name)
    found = difference(model, sampler_of(model, shared=True), rows)
    tokens = sum(len(p) + len(c) - 1 for p, c in zip(PROMPTS[:rows], COMPLETIONS[:rows], strict=True))
    assert found == Mean(0, 2 * tokens)


@pytest.mark.slow
def test_another_router_chooses_other_experts():
    model = tiny_model("qwen3-moe, experts")
    sampler = sampler_of(model)
    with torch.no_grad():
        routers(sampler.model)[1].weight.mul_(-1)
    found = difference(model, sampler, rows=16)
    assert 0.25 < float(found) <= 0.5, "one of the two layers chooses its two least likely of four experts"


@pytest.mark.slow
def test_rounding_changes_some_choices():
    """0.55% of 9120 choices (token, layer), each of two experts among four."""
    model = tiny_model("qwen3-moe, experts")
    found = difference(model, sampler_of(model, dtype=torch.bfloat16))
    assert found.denominator > 9000
    assert 0 < float(found) < 0.05


@pytest.mark.slow
def test_a_publish_of_a_mixture_measures_its_routing():
    model = tiny_model("qwen3-moe, experts")
    proof = DeliveryProof.from_prompts(PROMPTS, tolerance=1e-3)
    sampler = sampler_of(model)
    metrics = proof.check(trainer_logprobs(model), model, sampler, sampler.receipt(), 1)
    assert metrics["mismatch/routing_difference"] == Mean(0, 4 * 31 * 2)


def test_a_publish_of_a_dense_model_says_nothing_of_routing():
    model = tiny_model("llama")
    proof = DeliveryProof.from_prompts(PROMPTS, tolerance=1e-3)
    sampler = sampler_of(model)
    metrics = proof.check(trainer_logprobs(model), model, sampler, sampler.receipt(), 1)
    assert "mismatch/routing_difference" not in metrics


@pytest.mark.parametrize("name", MIXTURES)
def test_no_auxiliary_loss_of_the_router_is_added(name):
    """The gradient comes from the log-probabilities alone, even if the config asks for the balancing loss."""

    def gradients(**settings) -> list[torch.Tensor]:
        model = tiny_model(name)
        for key, value in settings.items():
            setattr(model.config, key, value)
        tokens = Tokens(input_ids_BT=torch.tensor([[5, 6, 7, 8, 9]]), lengths_B=torch.tensor([5]))
        mask_BT = torch.tensor([[False, False, True, True, True]])
        token_logprobs(model, tokens, mask_BT, temperature=1.0).logprobs_BT.sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    plain = gradients()
    asked = gradients(output_router_logits=True, router_aux_loss_coef=10.0)
    assert all(torch.equal(a, b) for a, b in zip(plain, asked, strict=True))
    assert any(grad.abs().max() > 0 for grad in plain)
