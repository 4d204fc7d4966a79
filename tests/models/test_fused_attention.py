"""Attention as one step of autograd is that of the model, forward and backward; any other kind is left alone."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention

from posttrain.config import LoRAConfig
from posttrain.data.collate import collate
from posttrain.models import fused_attention as module
from posttrain.models.adapters import apply_lora
from posttrain.models.forward import token_logprobs
from posttrain.models.forward_path import forward_path
from posttrain.models.fused import Fused, fuse, kind_of
from posttrain.models.fused_attention import is_rotary_attention
from posttrain.models.kernels import Kernels, kernels, training_by, why_none
from posttrain.models.packed_attention import KERNELS_ATTEND

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"no compiled kernels: {why_none()}")
PRECISIONS = [torch.float32, torch.bfloat16]
SIZES: dict[str, Any] = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 128}
IDS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ROWS = [(tuple(range(5, 25)), tuple(range(30, 60))), (tuple(range(5, 25)), tuple(range(60, 70))), ((7, 8), (9, 10, 11))]


def have() -> Kernels:
    found = kernels()
    assert found is not None, why_none()
    return found


def made(kind: str = "Llama", **changes: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(hf, f"{kind}Config")(**SIZES | IDS | changes)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if "bias" in name or "norm" in name:
            torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.3)
    forward_path(model)
    return model


def attentions(model: Any) -> list[Any]:
    return [m for m in model.modules() if hasattr(m, "o_proj")]


def num_fused(model: Any) -> int:
    return sum(isinstance(attention, Fused) for attention in attentions(model))


def losses(model: Any, by: Kernels | None, dtype: torch.dtype) -> list[Tensor]:
    """Log-probabilities of rows that begin alike and of one alone, and the gradients of what is trained."""
    tokens, mask_BT = collate(ROWS, 0)
    parameters = [p for p in model.parameters() if p.requires_grad]
    with training_by(by), torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        logprobs_BT = token_logprobs(model, tokens, mask_BT, temperature=1.0).logprobs_BT
        weights = torch.linspace(-1, 1, logprobs_BT.numel()).view_as(logprobs_BT)
        gradients = torch.autograd.grad((logprobs_BT * weights).sum(), parameters)
    return [logprobs_BT.detach(), *gradients]


def exactly(model: Any) -> list[Tensor]:
    """In float64 and without kernels; experts are not multiplied in it, so a model with experts in float32."""
    has_experts = hasattr(model.config, "num_experts_per_tok")
    return losses(copy.deepcopy(model).to(torch.float32 if has_experts else torch.float64), None, torch.float32)


def error(found: list[Tensor], exact: list[Tensor]) -> float:
    """The largest relative one of a whole tensor; of biases of keys, whose gradient is zero, of all numbers."""
    scale = max(float(e.norm()) for e in exact[1:]) * 1e-3
    return max(float((a - e).norm() / max(float(e.norm()), scale)) for a, e in zip(found, exact, strict=True))


def whole_error(found: list[Tensor], exact: list[Tensor]) -> float:
    """That of all gradients together."""
    flat = [torch.cat([x.flatten().double() for x in tensors[1:]]) for tensors in (found, exact)]
    return float((flat[0] - flat[1]).norm() / flat[1].norm())


FUSED = {
    "Llama": {},
    "biases": {"attention_bias": True},
    "Qwen2": {},
    "Qwen3": {},
    "Mistral": {"sliding_window": None},
    "Gemma": {},
    "Granite": {"attention_multiplier": 0.3},
    "Mixtral": {},
    "Qwen3Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
}


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize("kind", FUSED)
def test_a_model_learns_the_same(kind, dtype):
    """Against float64: float32 within 1e-5, bfloat16 no further off than PyTorch's own operations.

    Experts are multiplied in float32 at most.
    """
    model = made("Llama" if kind == "biases" else kind, **FUSED[kind])
    assert num_fused(model) == 2
    exact = exactly(model)
    plain, found = losses(model, None, dtype), losses(model, have(), dtype)
    assert not torch.equal(found[1], plain[1]), "it is computed in another way"
    assert error(found, exact) <= (1e-5 if dtype == torch.float32 else 1.2 * error(plain, exact))


LEFT_ALONE = {
    "scores with a cap": ("Gemma2", {}),
    "clamped projections": ("Olmo", {"clip_qkv": 0.05}),
    "norms across heads": ("Olmo2", {}),
    "neighbours rotated": ("Cohere", {}),
    "half of a head rotated": ("Glm4", {}),
}


@pytest.mark.parametrize("kind", LEFT_ALONE)
def test_attention_of_another_kind_is_left_alone(kind):
    name, changes = LEFT_ALONE[kind]
    assert num_fused(made(name, **changes)) == 0


def test_only_layers_that_rotate_are_fused():
    model = made("SmolLM3", no_rope_layers=[1, 0])
    assert [isinstance(attention, Fused) for attention in attentions(model)] == [True, False]


class GatedAttention(LlamaAttention):
    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, past_key_values=None, **kwargs):
        out, weights = super().forward(hidden_states, position_embeddings, attention_mask, past_key_values, **kwargs)
        return out * hidden_states.mean().sigmoid(), weights


class ShiftedValues(LlamaAttention):
    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, past_key_values=None, **kwargs):
        with torch.no_grad():
            self.v_proj.weight += 0.01
        return super().forward(hidden_states, position_embeddings, attention_mask, past_key_values, **kwargs)


class TakesMore(LlamaAttention):
    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, past_key_values=None, more=1, **kw):
        return super().forward(hidden_states, position_embeddings, attention_mask, past_key_values, **kw)


class OtherScale(LlamaAttention):
    def forward(self, *given, **named):
        return super().forward(*given, **named)


class Gained(LlamaAttention):
    """What it learns shows in no trial at its start."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.gain = torch.nn.Parameter(torch.ones(()))

    def forward(self, *given, **named):
        out, weights = super().forward(*given, **named)
        return out * self.gain, weights

    forward.__signature__ = inspect.signature(LlamaAttention.forward)  # type: ignore[attr-defined]


class Tempered(LlamaAttention):
    """By positions, where it is told of them."""

    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, past_key_values=None, **kwargs):
        at = kwargs.get("position_ids")
        scale = 1.0 if at is None else (1 + torch.log1p(at // 64))[..., None]
        return super().forward(hidden_states * scale, position_embeddings, attention_mask, past_key_values, **kwargs)


class DropsOut(LlamaAttention):
    """As Starcoder2 does, in training alone."""

    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, past_key_values=None, **kwargs):
        out, weights = super().forward(hidden_states, position_embeddings, attention_mask, past_key_values, **kwargs)
        return torch.nn.functional.dropout(out, 0.1, training=self.training), weights


MORE = [GatedAttention, ShiftedValues, TakesMore, OtherScale, Gained, Tempered, DropsOut]


@pytest.mark.parametrize("kind", MORE)
def test_a_subclass_that_does_more_is_left_alone(kind):
    config = copy.deepcopy(made().config)
    config._attn_implementation = KERNELS_ATTEND
    assert is_rotary_attention(LlamaAttention(config, 0))
    assert not is_rotary_attention(kind(config, 0))


class Larger(LlamaAttention):
    """By less than bfloat16 would show."""

    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, past_key_values=None, **kwargs):
        out, weights = super().forward(hidden_states, position_embeddings, attention_mask, past_key_values, **kwargs)
        return out * 1.005, weights


def test_weights_in_bfloat16_are_tried_as_exactly():
    config = copy.deepcopy(made().config)
    config._attn_implementation = KERNELS_ATTEND
    assert is_rotary_attention(LlamaAttention(config, 0).bfloat16())
    assert not is_rotary_attention(Larger(config, 0).bfloat16())


def test_trying_draws_no_random_number_and_changes_no_mode():
    config = copy.deepcopy(made().config)
    config._attn_implementation = KERNELS_ATTEND
    attention, before = DropsOut(config, 0).eval(), torch.get_rng_state()
    assert not is_rotary_attention(attention)
    assert torch.equal(before, torch.get_rng_state())
    assert not attention.training


def test_settings_that_were_not_tried_are_left_to_the_model(monkeypatch):
    model = made()
    monkeypatch.setattr(module._FromInput, "apply", None)
    with pytest.raises(TypeError):
        losses(model, have(), torch.float32)
    for layer in model.model.layers:
        layer.register_forward_pre_hook(lambda _, given, named: (given, named | {"cap": 3.0}), with_kwargs=True)
    losses(model, have(), torch.float32)


def test_another_attention_implementation_is_left_alone():
    config = copy.deepcopy(made().config)
    for name in ("sdpa", "eager", "packed_eager"):
        config._attn_implementation = name
        assert not is_rotary_attention(LlamaAttention(config, 0))


def test_a_window_narrower_than_a_row_is_not_computed_by_it(monkeypatch):
    """The layer is the same; its mask is not."""
    model = made("Mistral", sliding_window=8)
    assert num_fused(model) == 2
    plain = losses(model, None, torch.float32)
    monkeypatch.setattr(module._FromInput, "apply", None)
    assert error(losses(model, have(), torch.float32), plain) < 1e-5


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_adapters_are_called_as_they_are(dtype, dropout):
    model: Any = apply_lora(made(), LoRAConfig(rank=4, dropout=dropout))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    assert num_fused(model) == 2
    model.train()
    found = []
    for by, precision in ((None, torch.float32), (None, dtype), (have(), dtype)):
        torch.manual_seed(0)
        found.append(losses(model, by, precision))
    exact, plain, fused = found
    assert not torch.equal(plain[1], fused[1])
    # of 24 draws the median is 0.102 on both sides; one differs by up to 1.4 times
    assert whole_error(fused, exact) <= (1e-5 if dtype == torch.float32 else 2 * whole_error(plain, exact))


def test_hooks_on_a_projection_are_called():
    model, called = made(), []
    plain = losses(model, None, torch.float32)
    attentions(model)[0].v_proj.register_forward_hook(lambda _, __, out: called.append(out.shape) or out * 2)
    doubled = losses(model, have(), torch.float32)
    assert len(called) == 1
    assert not torch.allclose(doubled[0], plain[0], atol=1e-4)
    assert error(doubled, losses(model, None, torch.float32)) < 1e-5


@pytest.mark.parametrize("trained", ["q_proj", "k_proj", "v_proj", "o_proj", "embed_tokens", "norm"])
def test_weights_that_are_frozen_get_no_gradient(trained):
    model = made(attention_bias=True)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained in name)
    exact = exactly(model)
    plain, found = losses(model, None, torch.float32), losses(model, have(), torch.float32)
    assert error(found, exact) <= 2 * max(error(plain, exact), 5e-6)


def test_weights_in_bfloat16_are_computed_in_it():
    model = made().bfloat16()
    found, plain = losses(model, have(), torch.bfloat16), losses(model, None, torch.bfloat16)
    assert [x.dtype for x in found] == [x.dtype for x in plain]
    assert error(found, plain) < 0.1


def test_dropout_of_weights_is_left_to_the_model(monkeypatch):
    model = made(attention_dropout=0.5)
    monkeypatch.setattr(module._FromInput, "apply", None)
    model.train()
    losses(model, have(), torch.float32)
    model.eval()
    with pytest.raises(TypeError):
        losses(model, have(), torch.float32)


def test_decoding_with_a_cache_and_a_plain_call_are_the_model_s_own(monkeypatch):
    model = made()
    monkeypatch.setattr(module._FromInput, "apply", None)
    ids = torch.arange(12)[None]
    whole = model(input_ids=ids).logits
    with training_by(have()):
        torch.testing.assert_close(model(input_ids=ids).logits, whole)
        first = model(input_ids=ids[:, :8], use_cache=True)
        rest = model(input_ids=ids[:, 8:], past_key_values=first.past_key_values).logits
    torch.testing.assert_close(rest, whole[:, 8:])


def test_without_kernels_every_bit_is_the_model_s_own():
    model, other = made(), made()
    for attention in attentions(other):
        attention.__class__ = kind_of(attention)
    pairs = zip(losses(model, None, torch.float32), losses(other, None, torch.float32), strict=True)
    assert num_fused(other) == 0
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
def test_recomputed_layers_give_the_same_bits(dtype):
    """And neither threads nor a second time change one."""
    model = made().train()
    found, before = losses(model, have(), dtype), torch.get_num_threads()
    model.gradient_checkpointing_enable()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            again = losses(model, have(), dtype)
            products = [torch.allclose(a, b, rtol=1e-2, atol=1e-6) for a, b in zip(again, found, strict=True)]
            assert all(products)
            if threads == before:
                assert all(torch.equal(a, b) for a, b in zip(again, found, strict=True))
    finally:
        torch.set_num_threads(before)


def test_less_is_kept_for_the_backward_pass():
    model = made()
    weights = {p.data_ptr() for p in model.parameters()}

    def kept(fused: bool) -> int:
        memory: dict[int, int] = {}

        def note(x: Tensor) -> Tensor:
            if x.data_ptr() not in weights:
                memory[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        for attention in attentions(model):
            attention.__class__ = kind_of(attention)
            if fused:
                fuse(attention, module._RotaryAttention)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            losses(model, have(), torch.bfloat16)
        return sum(memory.values())

    assert kept(True) < 0.9 * kept(False)


@settings(deadline=None, max_examples=40)
@given(
    length=st.integers(1, 40),
    heads=st.integers(1, 5),
    more=st.integers(0, 3),
    half=st.sampled_from([16, 32, 48]),
    dtypes=st.tuples(st.sampled_from(PRECISIONS), st.sampled_from(PRECISIONS)),
    back=st.booleans(),
    seed=st.integers(0, 99),
)
def test_rotation_there_and_back_is_the_formula_for_any_shape(length, heads, more, half, dtypes, back, seed):
    """And what lies beside the heads stays as it is."""
    torch.manual_seed(seed)
    x, angles = torch.randn(length, heads + more, 2 * half, dtype=dtypes[0]), torch.randn(length, 2 * half)
    cos, sin = angles.cos().to(dtypes[1]), angles.sin().to(dtypes[1])
    leaf = x[:, :heads].double().requires_grad_()
    low, high = leaf.chunk(2, dim=-1)
    rotated = leaf * cos[:, None].double() + torch.cat([-high, low], dim=-1) * sin[:, None].double()
    expected = torch.autograd.grad(rotated, leaf, leaf.detach())[0] if back else rotated.detach()
    before = x.clone()
    have().rotate_heads_(x[:, :heads], cos, sin, back=back)
    tolerance = 1e-6 if dtypes[0] == torch.float32 else 8e-3
    torch.testing.assert_close(x[:, :heads].double(), expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(x[:, heads:], before[:, heads:])
