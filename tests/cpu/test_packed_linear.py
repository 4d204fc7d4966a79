"""A copy with packed weights computes like the policy, holds each weight once, and is proved as strictly."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.catalogue import catalogue, few
from tests.engines.policies import (
    CONFIGS,
    EOS,
    lora_model,
    random_prompts,
    tiny_model,
    tiny_tokenizer,
    trainer_logprobs,
)
from tests.engines.test_weights import outputs
from torch import nn

from posttrain.cpu import onednn
from posttrain.cpu.onednn import PackedLinear, pack_linears
from posttrain.engines import DeliveryProof, LocalSampler
from posttrain.engines.delivery import deliver, tolerance_for
from posttrain.engines.weights import copy_weights, dense, merged_tensors, named_tensors, plain_copy
from posttrain.errors import ModelError, PublishError

pytestmark = pytest.mark.skipif(not onednn.available(), reason="PyTorch is built without oneDNN here")

PROMPTS = random_prompts((9, 40, 1, 6))
MULTIPLIES_ITSELF = "mamba, state space"
"""A model whose blocks multiply by the weight of a linear layer without calling the layer."""
DTYPES = [dtype for dtype in (torch.float32, torch.bfloat16) if onednn.packs(dtype)]


def sampler_of(policy: nn.Module, *, dtype: torch.dtype | None = None, kind: type[LocalSampler] = LocalSampler):
    return kind(policy, tiny_tokenizer(), [EOS], shared=False, packed=True, dtype=dtype, version=1)


def check(policy: nn.Module, sampler: LocalSampler, *, dtype: torch.dtype = torch.float32, version: int = 1):
    proof = DeliveryProof.from_prompts([p.ids for p in PROMPTS], tolerance=tolerance_for(dtype))
    return proof.check(trainer_logprobs(policy), policy, sampler, sampler.receipt(), version)


def packed_layers(model: nn.Module) -> dict[str, PackedLinear]:
    return {name: module for name, module in model.named_modules() if isinstance(module, PackedLinear)}


def moved(policy: nn.Module, by: float = 0.01) -> nn.Module:
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += by
    return policy


# ---------------------------------------------------------------- one layer


@settings(deadline=None, max_examples=25)
@given(
    rows=st.lists(st.integers(0, 5), max_size=2),
    inputs=st.integers(1, 70),
    outs=st.integers(1, 70),
    bias=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
def test_a_packed_layer_is_the_layer_for_any_shape(rows, inputs, outs, bias, dtype, seed):
    """float32: to rounding. bfloat16: to the half unit in the last place (2 ** -8) by which results are rounded."""
    torch.manual_seed(seed)
    linear = nn.Linear(inputs, outs, bias=bias).to(dtype).requires_grad_(False)
    packed, x = PackedLinear(linear), torch.randn(*rows, inputs).to(dtype)
    exact = nn.functional.linear(x.double(), linear.weight.double(), linear.bias.double() if bias else None)
    found = packed(x)
    assert (found.shape, found.dtype) == (exact.shape, dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=tolerance)


def test_a_view_with_strides_of_its_own_is_read_as_what_it_is():
    """The operator alone would read the memory in another order."""
    linear = nn.Linear(8, 3).requires_grad_(False)
    x = torch.randn(4, 5, 8).transpose(0, 1)
    torch.testing.assert_close(PackedLinear(linear)(x), linear(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_unpacking_gives_every_bit_back(dtype):
    linear = nn.Linear(37, 19).to(dtype)
    again = PackedLinear(linear).dense()
    assert torch.equal(again.weight, linear.weight)
    assert again.bias is linear.bias


def test_a_loaded_weight_takes_the_place_of_the_one_before():
    for dtype in DTYPES:
        layer, new = PackedLinear(nn.Linear(8, 8, dtype=dtype)), torch.randn(8, 8)
        layer.load_weight(new)
        assert torch.equal(dense(layer.weight), new.to(dtype))


# ---------------------------------------------------------------- a whole model


@catalogue("name", [name for name in CONFIGS if name != MULTIPLIES_ITSELF])
def test_a_packed_copy_computes_what_the_policy_computes(name):
    policy = tiny_model(name)
    twin = plain_copy(policy, None, packed=True)
    largest = outputs(policy).abs().max()
    torch.testing.assert_close(outputs(twin), outputs(policy), rtol=0, atol=float(1e-5 * largest))


@pytest.mark.parametrize("name", few(["llama", "qwen2, tied", "mistral, sliding window"], "qwen2, tied"))
def test_a_packed_copy_in_bfloat16_is_as_near_as_a_plain_one(name):
    """Against float32 the error is that of bfloat16, here at most 5 % of the largest logit; packing adds nothing."""
    policy = tiny_model(name)
    exact = outputs(policy)
    plain, packed = (outputs(plain_copy(policy, torch.bfloat16, packed=packed)).float() for packed in (False, True))
    assert (packed - exact).abs().max() < 0.05 * exact.abs().max()
    assert (packed - exact).square().mean() < 1.5 * (plain - exact).square().mean()


@pytest.mark.parametrize("name", few(["llama", "qwen2, tied", "gpt2, learned positions"], "gpt2, learned positions"))
def test_adapters_are_merged_into_a_packed_copy(name):
    policy = lora_model(name)
    twin = plain_copy(policy, None, packed=True)
    torch.testing.assert_close(outputs(twin), outputs(policy), rtol=0, atol=1e-4)
    copy_weights(moved(policy), twin)
    expected = dict(merged_tensors(policy))
    assert dict(named_tensors(twin)).keys() == expected.keys()
    for name_, tensor in named_tensors(twin):
        assert torch.equal(dense(tensor), expected[name_]), name_


def test_no_weight_is_held_twice_but_a_head_that_is_also_the_embedding():
    """The embedding looks rows up and needs it dense; every other weight has only one layout."""
    twin = plain_copy(tiny_model("qwen2, tied"), None, packed=True)
    linear = [module for module in twin.modules() if isinstance(module, nn.Linear)]
    assert not linear
    assert "lm_head" in packed_layers(twin)
    assert isinstance(twin.get_input_embeddings(), nn.Embedding)
    assert {name for name, p in twin.named_parameters() if p.dim() == 2} == {"model.embed_tokens.weight"}


def test_a_model_that_does_more_with_a_weight_than_to_call_its_layer_is_refused_and_left_as_it_was():
    model = tiny_model(MULTIPLIES_ITSELF)
    expected = outputs(model)
    with pytest.raises(ModelError, match=r"MambaForCausalLM does not run with packed weights \(\w+: .*\); allowed"):
        pack_linears(model)
    torch.testing.assert_close(outputs(model), expected, rtol=0, atol=0)


# ---------------------------------------------------------------- the proof of delivery


@pytest.mark.parametrize(
    ("name", "dtype"),
    few(
        [(name, dtype) for name in ("llama", "qwen2, tied", "qwen3-moe, experts", "lora") for dtype in DTYPES],
        ("qwen2, tied", torch.float32),
        *[(name, DTYPES[-1]) for name in ("qwen3-moe, experts", "lora")],
    ),
)
def test_delivered_weights_pass_and_are_all_compared(name, dtype):
    policy = lora_model() if name == "lora" else tiny_model(name)
    sampler = sampler_of(policy, dtype=dtype)
    deliver(moved(policy), sampler, 2)
    metrics = check(policy, sampler, dtype=dtype, version=2)
    assert metrics["publish/tensors_compared"].value == len(list(merged_tensors(policy)))  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_packed_weight_that_stayed_behind_is_named(dtype):
    policy = tiny_model()
    sampler = sampler_of(policy, dtype=dtype)
    layer = packed_layers(sampler.model)["model.layers.1.mlp.up_proj"]
    stale = layer.weight
    deliver(moved(policy), sampler, 2)
    layer.weight = stale
    with pytest.raises(PublishError, match=r"^model\.layers\.1\.mlp\.up_proj\.weight differs .* 0 of the other"):
        check(policy, sampler, dtype=dtype, version=2)


def test_a_step_too_small_for_any_probe_is_found_where_it_was_not_delivered():
    policy = tiny_model()
    sampler = sampler_of(policy)
    with torch.no_grad():
        policy.lm_head.weight[3, 3] += 1e-6
    with pytest.raises(PublishError, match=r"^lm_head\.weight differs"):
        check(policy, sampler)


class KeepsAPackedWeightBeside(PackedLinear):
    """Has the new weight under its name, but multiplies by the weight that it was built with."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        self._kept = [self.weight]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return onednn.packed_linear(x, self._kept[0], self.bias)


@pytest.mark.parametrize("by", [1e-2, 0.0])
def test_a_packed_weight_beside_the_one_that_was_compared_is_found(by):
    """The size of the step does not matter: the plain pass and decoding agree with each other, but read neither
    weight."""
    policy = tiny_model()
    sampler = sampler_of(policy)
    sampler.model.lm_head = KeepsAPackedWeightBeside(policy.lm_head)  # type: ignore[assignment]
    deliver(moved(policy, by), sampler, 2)
    with pytest.raises(PublishError, match=r"decoding does not read lm_head\.weight \(1 tensors\)"):
        check(policy, sampler, version=2)


def test_a_packed_head_beside_the_tied_embedding_is_found_when_it_stayed_behind():
    """Dense, the two are one tensor, and only the probe can tell; a packed head is compared separately."""
    policy = tiny_model("qwen2, tied")
    sampler = sampler_of(policy)
    stale = packed_layers(sampler.model)["lm_head"].weight
    deliver(moved(policy, 1e-6), sampler, 2)
    sampler.model.lm_head.weight = stale  # type: ignore[union-attr]
    with pytest.raises(PublishError, match=r"^lm_head\.weight differs"):
        check(policy, sampler, version=2)
