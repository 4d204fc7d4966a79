"""The kernel for experts equals the model's own block, bit by bit the same in any batch, or the block itself is
called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tests.catalogue import catalogue
from tests.engines.policies import (
    EOS,
    SIZES,
    Settings,
    random_prompts,
    tiny_model,
    tiny_tokenizer,
    trainer_logprobs,
)
from torch import Tensor, nn
from transformers import MixtralConfig, OlmoeConfig, Qwen2MoeConfig, Qwen3MoeConfig
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from posttrain.cpu import plain_decoder
from posttrain.cpu import plain_decoder as module
from posttrain.cpu.kernels import Kernels, kernels, why_none
from posttrain.cpu.plain_decoder import HALF_ROWS, built_as_experts, by_formula, experts_by_kernel
from posttrain.engines import DeliveryProof, LocalSampler
from posttrain.engines.decoding_path import decoding_path
from posttrain.engines.delivery import deliver
from posttrain.errors import PublishError
from posttrain.models.compute import Compute

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"no compiled kernels: {why_none()}")
MODEL = "qwen3-moe, experts"
_SIZES: dict[str, Any] = SIZES | {"num_experts_per_tok": 2, "moe_intermediate_size": 48, "intermediate_size": 48}
BLOCKS: dict[str, Callable[..., nn.Module]] = {
    "qwen3_moe": lambda **s: Qwen3MoeSparseMoeBlock(Qwen3MoeConfig(num_experts=5, norm_topk_prob=True, **_SIZES | s)),
    "mixtral": lambda **s: MixtralSparseMoeBlock(MixtralConfig(num_local_experts=5, **_SIZES | s)),
    "olmoe": lambda **s: OlmoeSparseMoeBlock(OlmoeConfig(num_experts=5, **_SIZES | s)),
}


def block_of(name: str = "qwen3_moe", **changed: Any) -> Any:
    block: Any = BLOCKS[name](**changed).eval().requires_grad_(False)
    block.experts.config._experts_implementation = "eager"
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.25)
    return block


def by_kernel(block: nn.Module) -> Callable[[Tensor], Tensor]:
    found = experts_by_kernel(block, kernels())
    assert found is not None
    return found


def sampler_of(model: nn.Module, **options: Any) -> LocalSampler:
    given: dict[str, Any] = {"shared": True, "version": 1, "compute": Compute(kernels="compiled")} | options
    return LocalSampler(model, tiny_tokenizer(), [EOS], **given)


# ---------------------------------------------------------------- the block


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
def test_experts_by_the_kernel_and_by_the_formula_give_what_the_block_gives(name, dtype, tolerance):
    """The tolerance is relative to the largest number; for one row, for some, and for more than one chunk of the
    kernel."""
    torch.manual_seed(0)
    block = block_of(name).to(dtype)
    assert built_as_experts(block)
    for rows in (1, 7, 300):
        x = 3 * torch.randn(rows, 32).to(dtype)
        expected = block(x[None])[0]
        for found in (by_kernel(block)(x), by_formula(block, x)):
            assert found.dtype == dtype
            assert (found - expected).abs().max() <= tolerance * expected.abs().max()


def test_many_rows_in_bfloat16_are_left_to_the_products_of_the_processor():
    """Few rows are not: the kernel rounds once, at the end."""
    torch.manual_seed(0)
    block = block_of().to(torch.bfloat16)
    for rows, same in ((5 * HALF_ROWS // 2, False), (5 * HALF_ROWS // 2 + 1, True)):
        x = 3 * torch.randn(rows, 32).bfloat16()
        assert torch.equal(by_kernel(block)(x), block(x[None])[0]) == same


def test_rows_get_the_same_bits_in_slabs_as_together(monkeypatch):
    torch.manual_seed(0)
    block, x = block_of(), torch.randn(23, 32)
    together = by_kernel(block)(x)
    monkeypatch.setattr(module, "SLAB", 7)
    assert torch.equal(by_kernel(block)(x), together)


def test_no_rows_give_no_rows():
    assert by_kernel(block_of())(torch.zeros(0, 32)).shape == (0, 32)


def _changed(change: str) -> Any:
    if change == "another activation":
        return block_of(hidden_act="gelu")
    if change == "odd width":
        return block_of(moe_intermediate_size=24)
    if change == "a shared expert":
        return Qwen2MoeSparseMoeBlock(Qwen2MoeConfig(num_experts=5, shared_expert_intermediate_size=16, **_SIZES))
    block = block_of()
    if change == "a bias":
        block.experts.bias = nn.Parameter(torch.zeros(5, 32))
    elif change == "stored otherwise":
        block.experts.down_proj = nn.Parameter(block.experts.down_proj.mT.contiguous().mT, requires_grad=False)
    elif change.startswith("hook"):
        module = {"block": block, "experts": block.experts, "gate": block.experts.act_fn}[change.split()[-1]]
        module.register_forward_hook(lambda *_: None)
    else:
        block.to(torch.float64)
    return block


@catalogue(
    "change",
    [
        "another activation",
        "odd width",
        "a shared expert",
        "a bias",
        "stored otherwise",
        "hook on the block",
        "hook on the experts",
        "hook on the gate",
        "float64",
    ],
)
def test_what_the_kernel_does_not_know_is_called(change):
    assert experts_by_kernel(_changed(change), kernels()) is None


def test_without_kernels_and_under_autocast_the_block_is_called():
    assert experts_by_kernel(block_of(), None) is None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert experts_by_kernel(block_of(), kernels()) is None


# ---------------------------------------------------------------- whole models


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.slow),
        {"shared": False, "dtype": torch.bfloat16},
        {"shared": False, "packed": True},
    ],
)
def test_a_model_of_experts_samples_by_the_kernel_what_it_samples_without(options, monkeypatch):
    model, called = tiny_model(MODEL, head_dim=32), []
    sampler = sampler_of(model, **options)
    monkeypatch.setattr(Kernels, "experts", _counted(Kernels.experts, called))
    prompts, tokens = [p.ids for p in random_prompts()], [(5, 9, 11, 30)] * 5
    found = sampler.score(prompts, tokens, temperature=1.0)
    assert called
    monkeypatch.setattr(plain_decoder, "experts_by_kernel", lambda *_: None)
    called.clear()
    expected = sampler.score(prompts, tokens, temperature=1.0)
    assert not called
    tolerance = 1e-4 if options.get("dtype") is None else 0.2
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=tolerance)


def test_a_router_that_is_watched_is_called_and_its_experts_are_computed_by_the_kernel(monkeypatch):
    model, called, seen = tiny_model(MODEL, head_dim=32), [], []
    sampler = sampler_of(model)
    decoding_path(model)
    monkeypatch.setattr(Kernels, "experts", _counted(Kernels.experts, called))
    model.model.layers[1].mlp.gate.register_forward_hook(lambda *_: seen.append(1))
    sampler.generate(random_prompts(), Settings(), group_size=2, seed=0)
    assert len(called) == 2 * len(seen) > 0


def test_experts_with_an_adapter_decode_as_they_are_trained(monkeypatch):
    called: list[int] = []
    monkeypatch.setattr(Kernels, "experts", _counted(Kernels.experts, called))
    config = LoraConfig(
        task_type="CAUSAL_LM", r=2, target_modules=["q_proj"], target_parameters=["mlp.experts.down_proj"]
    )
    model = get_peft_model(tiny_model(MODEL, head_dim=32), config).eval()
    for parameter in (p for p in model.parameters() if p.requires_grad):
        nn.init.normal_(parameter, std=0.2)
    prompts, tokens = [p.ids for p in random_prompts()], [(5, 9, 11, 30)] * 5
    found = sampler_of(model).score(prompts, tokens, temperature=1.0)
    with torch.no_grad():
        expected = trainer_logprobs(model)(prompts, tokens, temperature=1.0)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)
    assert not called


def test_a_model_whose_experts_compute_something_else_is_not_taken_for_one():
    """It has the same structure, but its block gives twice as much."""
    model = tiny_model(MODEL, head_dim=32)
    for layer in model.model.layers:
        kind = type(layer.mlp)
        layer.mlp.__class__ = type("Other", (kind,), {"forward": lambda self, x, kind=kind: 2 * kind.forward(self, x)})
    assert built_as_experts(model.model.layers[0].mlp)
    assert decoding_path(model).decoder is None


def test_experts_that_are_kept_for_another_version_are_found(monkeypatch):
    """Decoding no longer reads the weights that were compared."""
    kept: dict[int, Any] = {}

    def stale(block: nn.Module, have: Kernels | None) -> Any:
        if id(block) not in kept:
            kept[id(block)] = experts_by_kernel(block, have)
        return kept[id(block)]

    policy = tiny_model(MODEL, head_dim=32)
    sampler = sampler_of(policy)
    decoding_path(policy)
    monkeypatch.setattr(plain_decoder, "experts_by_kernel", stale)
    proof = DeliveryProof.from_prompts([p.ids for p in random_prompts((9, 6))], tolerance=1e-3)
    with torch.no_grad():
        proof.check(trainer_logprobs(policy), policy, sampler, sampler.receipt(), 1)
        for parameter in policy.parameters():
            parameter.data = parameter + 1e-9
    deliver(policy, sampler, 2)
    with pytest.raises(PublishError, match=r"decoding does not read model\.layers\.0\.mlp\.experts\.gate_up_proj"):
        proof.check(trainer_logprobs(policy), policy, sampler, sampler.receipt(), 2)


def _counted(function: Callable[..., Any], calls: list[int]) -> Callable[..., Any]:
    def counted(*arguments: Any) -> Any:
        calls.append(1)
        return function(*arguments)

    return counted
