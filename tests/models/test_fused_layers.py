"""Norms and gates by one kernel each are those of the model, forward and backward; anything else is left alone."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

from posttrain.config import LoRAConfig
from posttrain.models.adapters import apply_lora
from posttrain.models.fused import kind_of
from posttrain.models.fused_layers import fuse_layers, is_gated_mlp, is_rms_norm
from posttrain.models.kernels import LANES, Kernels, kernels, training_by, why_none

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"no compiled kernels: {why_none()}")
PRECISIONS = [torch.float32, torch.bfloat16]
CONFIG: dict[str, Any] = {"vocab_size": 61, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2}
CONFIG |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def have() -> Kernels:
    found = kernels()
    assert found is not None, why_none()
    return found


def llama(**changes: Any) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(hf.LlamaConfig(**CONFIG | changes), dtype=torch.float32)


def fused(module: nn.Module) -> nn.Module:
    fuse_layers(holder := nn.ModuleList([module]))
    return holder[0]


def noisy(norm: Any) -> Any:
    nn.init.normal_(norm.weight)
    return norm


# ---------------------------------------------------------------- the kernels


@settings(deadline=None, max_examples=40)
@given(
    rows=st.lists(st.integers(0, 40), min_size=1, max_size=2),
    width=st.integers(1, 12),
    dtypes=st.tuples(st.sampled_from(PRECISIONS), st.sampled_from(PRECISIONS)),
    seed=st.integers(0, 99),
)
def test_a_norm_and_its_gradients_are_the_formula_for_any_shape(rows, width, dtypes, seed):
    torch.manual_seed(seed)
    width *= LANES
    x, weight = torch.randn(*rows, width, dtype=dtypes[0]), torch.randn(width)
    out, factors = have().rms_norm_kept(x, weight, 1e-3, dtypes[1])
    gradient = torch.randn(*rows, width, dtype=dtypes[1])
    found = have().rms_norm_backward(gradient, x, weight, factors)
    leaves = x.double().requires_grad_(), weight.double().requires_grad_()
    expected = F.rms_norm(leaves[0], (width,), leaves[1], 1e-3)
    assert (out.dtype, found[0].dtype, found[1].dtype) == (dtypes[1], dtypes[0], torch.float32)
    near(out, expected.detach())
    for actual, exact in zip(found, torch.autograd.grad(expected, leaves, gradient.double()), strict=True):
        near(actual, exact)


@settings(deadline=None, max_examples=40)
@given(
    rows=st.lists(st.integers(0, 40), min_size=1, max_size=2),
    width=st.integers(1, 12),
    dtype=st.sampled_from(PRECISIONS),
    size=st.sampled_from([0.1, 3.0, 100.0]),
    seed=st.integers(0, 99),
)
def test_a_gate_and_its_gradients_are_the_formula_for_any_shape(rows, width, dtype, size, seed):
    torch.manual_seed(seed)
    gate, up, gradient = (torch.randn(*rows, LANES * width, dtype=dtype) for _ in range(3))
    gate *= size
    out, found = have().silu_gate_of(gate, up), have().silu_gate_backward(gradient, gate, up)
    leaves = gate.double().requires_grad_(), up.double().requires_grad_()
    expected = F.silu(leaves[0]) * leaves[1]
    near(out, expected.detach())
    for actual, exact in zip(found, torch.autograd.grad(expected, leaves, gradient.double()), strict=True):
        near(actual, exact)


def near(actual: Tensor, exact: Tensor) -> None:
    tolerance = 1e-5 if actual.dtype == torch.float32 else 4e-3
    largest = exact.abs().max() if exact.numel() else 0
    torch.testing.assert_close(actual.double(), exact, rtol=tolerance, atol=tolerance * float(largest))


def test_threads_change_no_bit(threads):
    torch.manual_seed(0)
    x, weight, gradient = torch.randn(1000, 64), torch.randn(64), torch.randn(1000, 64)
    found = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        out, factors = have().rms_norm_kept(x, weight, 1e-6, torch.float32)
        found.append([out, *have().rms_norm_backward(gradient, x, weight, factors)])
        found[-1] += [have().silu_gate_of(x, gradient), *have().silu_gate_backward(gradient, x, gradient)]
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(other, found[0], strict=True))


def test_a_row_of_no_numbers_stays_one_and_touches_no_other_row():
    x, weight = torch.ones(20, 32), torch.ones(32)
    x[3, 5] = float("nan")
    out, factors = have().rms_norm_kept(x, weight, 1e-6, torch.float32)
    dx, dweight = have().rms_norm_backward(torch.ones(20, 32), x, weight, factors)
    gated = have().silu_gate_backward(torch.ones(20, 32), x, torch.ones(20, 32))
    assert out[3].isnan().all()
    assert dx[3].isnan().all()
    assert dweight.isnan().any(), "a gradient that is no number must not vanish in a sum"
    assert all(tensor[3, 5].isnan() for tensor in gated)
    others = [row for row in range(20) if row != 3]
    assert all(tensor[others].isfinite().all() for tensor in (out, dx, *gated))


# ---------------------------------------------------------------- what is recognised


class CappedMLP(LlamaMLP):
    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x).clamp(max=7.0)) * self.up_proj(x))


class ShiftedNorm(LlamaRMSNorm):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states - hidden_states.mean(dim=-1, keepdim=True))


class NormWithGate(LlamaRMSNorm):
    def forward(self, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        normed = super().forward(hidden_states)
        return normed if gate is None else normed * F.silu(gate)


class NormOfPairs(LlamaRMSNorm):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states[0]) + hidden_states[1]["missing"]


class OutsideTheRoot(LlamaRMSNorm):
    def forward(self, hidden_states: Tensor) -> Tensor:
        root = hidden_states.square().mean(dim=-1, keepdim=True).sqrt()
        return self.weight * hidden_states / (root + self.variance_epsilon)


class OtherEpsilon(LlamaRMSNorm):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return F.rms_norm(hidden_states, self.weight.shape, self.weight, 1e-3)


class ClampedNorm(LlamaRMSNorm):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states.clamp(-50, 50))


class NormOfHeads(LlamaRMSNorm):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states.unflatten(-1, (-1, len(self.weight)))).flatten(-2)


class TripledMLP(LlamaMLP):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x)


class GainedMLP(LlamaMLP):
    """What it learns shows in no trial at its start."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * super().forward(x)


class DroppingMLP(LlamaMLP):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(x), 0.1, training=self.training)


class LargerMLP(LlamaMLP):
    def forward(self, x: Tensor) -> Tensor:
        return 1.005 * super().forward(x)


class LargerNorm(LlamaRMSNorm):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return 1.005 * super().forward(hidden_states)


def mlp(kind: type[LlamaMLP] = LlamaMLP, **changes: Any) -> LlamaMLP:
    torch.manual_seed(0)
    return kind(hf.LlamaConfig(**CONFIG | changes))


@torch.no_grad()
def test_what_is_a_norm_and_what_is_none():
    assert is_rms_norm(LlamaRMSNorm(64))
    assert is_rms_norm(noisy(LlamaRMSNorm(64, eps=0.5)))
    assert is_rms_norm(noisy(LlamaRMSNorm(64)).bfloat16())
    assert is_rms_norm(nn.RMSNorm(64, eps=1e-6))
    assert not is_rms_norm(Gemma3RMSNorm(64)), "it multiplies by 1 + weight"
    assert not is_rms_norm(noisy(Gemma3RMSNorm(64)))
    assert not is_rms_norm(noisy(ShiftedNorm(64)))
    assert not is_rms_norm(NormWithGate(64)), "it takes something besides"
    assert not is_rms_norm(NormOfPairs(64)), "it takes something else, and fails of this"
    assert not is_rms_norm(nn.LayerNorm(64, bias=False))
    assert not is_rms_norm(nn.RMSNorm(64)), "its epsilon depends on the precision"
    assert not is_rms_norm(LlamaRMSNorm(24)), "the kernels take sixteen numbers at a time"
    zero = LlamaRMSNorm(64)
    nn.init.zeros_(zero.weight)
    assert not is_rms_norm(zero), "whatever it is, it gives zeros"
    assert not is_rms_norm(nn.Linear(64, 64))
    assert not is_rms_norm(OutsideTheRoot(64)), "it differs for small numbers alone"
    assert not is_rms_norm(OtherEpsilon(64)), "so does this"
    assert not is_rms_norm(ClampedNorm(64)), "it differs for large numbers alone"
    assert not is_rms_norm(noisy(LargerNorm(64)).bfloat16()), "by less than bfloat16 would show"


@torch.no_grad()
def test_what_is_a_gated_mlp_and_what_is_none():
    assert is_gated_mlp(mlp())
    assert is_gated_mlp(mlp(mlp_bias=True))
    assert is_gated_mlp(mlp().bfloat16())
    assert not is_gated_mlp(mlp(hidden_act="gelu"))
    assert not is_gated_mlp(mlp(CappedMLP)), "it differs for large gates alone"
    assert not is_gated_mlp(mlp(GainedMLP)), "it differs once it has learned"
    assert not is_gated_mlp(mlp(DroppingMLP).eval()), "it differs in training alone"
    assert not is_gated_mlp(mlp(LargerMLP).bfloat16()), "by less than bfloat16 would show"
    assert not is_gated_mlp(nn.Sequential(nn.Linear(64, 64)))
    for part in ("up_proj", "down_proj"):
        hidden = mlp(TripledMLP)
        nn.init.zeros_(getattr(hidden, part).weight)
        assert not is_gated_mlp(hidden), "zeros tell nothing"
    mixed = mlp()
    mixed.down_proj.double()
    assert not is_gated_mlp(mixed)
    quantised = mlp()
    for part in (quantised.gate_proj, quantised.up_proj, quantised.down_proj):
        part.weight = nn.Parameter(part.weight.to(torch.int8), requires_grad=False)
    assert not is_gated_mlp(quantised)


def test_whoever_waits_for_a_part_is_not_passed_by():
    model = fused(llama())
    layer: Any = model.model.layers[0]  # type: ignore[union-attr]
    seen: list[str] = []
    for name, part in (("norm", layer.input_layernorm), ("mlp", layer.mlp), ("gate", layer.mlp.act_fn)):
        part.register_forward_hook(lambda *_, name=name: seen.append(name))
    with training_by(have()):
        model(input_ids=torch.arange(9)[None])
    assert seen == ["norm", "gate", "mlp"]


def test_what_changes_after_it_was_fused_is_not_passed_by():
    model = llama()
    fuse_layers(model)
    part, x = model.model.layers[0].mlp, torch.randn(1, 3, 64, requires_grad=True)
    seen: list[str] = []
    with training_by(have()):
        with part.act_fn.register_full_backward_hook(lambda *_: seen.append("backward")):
            part(x).sum().backward()
        with nn.modules.module.register_module_forward_hook(
            lambda module, *_: seen.append("forward") if module is part.act_fn else None
        ):
            part(x)
        assert seen == ["backward", "forward"]
        part.act_fn = nn.GELU()
        torch.testing.assert_close(part(x), part.down_proj(F.gelu(part.gate_proj(x)) * part.up_proj(x)))
        heads: Any = fused(noisy(NormOfHeads(16)))
        x = torch.randn(2, 64)
        torch.testing.assert_close(heads(x), NormOfHeads.forward(heads, x))


def test_classes_and_methods_that_others_make_of_it_work():
    model = llama()
    fuse_layers(model)
    norm, x = model.model.norm, torch.randn(2, 64)
    expected = norm(x)
    bound = norm.forward
    norm.forward = lambda *given: bound(*given)  # as accelerate's hooks do
    norm._old_forward = bound
    for by in (None, have()):
        with training_by(by):
            torch.testing.assert_close(copy.deepcopy(model).model.norm._old_forward(x), expected)
    del norm.forward, norm._old_forward
    nn.utils.parametrize.register_parametrization(norm, "weight", nn.Identity())
    assert kind_of(norm) is LlamaRMSNorm
    with training_by(have()):
        torch.testing.assert_close(norm(x), expected)


def test_modules_that_others_have_replaced_are_left_alone():
    model = llama()
    norm = model.model.norm
    norm.forward = lambda x: x
    assert not is_rms_norm(norm)


def test_whoever_names_the_input_is_understood():
    model = llama()
    fuse_layers(model)
    x = torch.randn(1, 3, 64)
    with training_by(have()):
        torch.testing.assert_close(model.model.norm(hidden_states=x), model.model.norm(x))
        torch.testing.assert_close(model.model.layers[0].mlp(x=x), model.model.layers[0].mlp(x))


# ---------------------------------------------------------------- in a model


def losses(model: Any, by: Kernels | None, dtype: torch.dtype) -> list[Tensor]:
    ids = (torch.arange(60) * 7 % 61)[None]
    with training_by(by), torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss
        return [loss.detach(), *torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])]


def test_without_kernels_a_model_computes_bit_by_bit_what_it_did():
    model = llama()
    before = losses(model, None, torch.float32)
    fuse_layers(model)
    fuse_layers(model)
    assert all(torch.equal(a, b) for a, b in zip(losses(model, None, torch.float32), before, strict=True))


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize("frozen", [False, True], ids=["all weights", "norms frozen"])
def test_a_model_learns_the_same(frozen, dtype):
    """Against PyTorch in float64: float32 within 1e-5, bfloat16 no further off than PyTorch's own operations."""
    model = llama()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            nn.init.normal_(parameter, mean=1.0, std=0.3)
            parameter.requires_grad_(not frozen)
    exact = losses(copy.deepcopy(model).double(), None, torch.float64)
    plain = losses(model, None, dtype)
    fuse_layers(model)
    found = losses(model, have(), dtype)

    def error(tensors: list[Tensor]) -> float:
        return max(float((a - e).norm() / e.norm()) for a, e in zip(tensors, exact, strict=True))

    assert error(found) <= (1e-5 if dtype == torch.float32 else 1.1 * error(plain))


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
def test_less_is_kept_for_the_backward_pass(dtype):
    model = llama(intermediate_size=192)
    fuse_layers(model)
    weights = {p.data_ptr() for p in model.parameters()}

    def kept(by: Kernels | None) -> int:
        memory: dict[int, int] = {}

        def note(x: Tensor) -> Tensor:
            if x.data_ptr() not in weights:
                memory[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            losses(model, by, dtype)
        return sum(memory.values())

    assert kept(have()) < 0.85 * kept(None)


def hidden_of(model: Any) -> Tensor:
    return model(input_ids=(torch.arange(12) * 7 % 61)[None], output_hidden_states=True).hidden_states[-1]


def test_one_rounded_copy_is_made_for_products_and_none_for_other_readers():
    model = llama()
    fuse_layers(model, lambda: hidden_of(model))
    layer, x = model.model.layers[0], torch.randn(1, 5, 64)
    with training_by(have()), torch.autocast("cpu", dtype=torch.bfloat16):
        rounded, whole = layer.input_layernorm(x), model.model.norm(x)
        assert layer.post_attention_layernorm(x).dtype == torch.bfloat16
    assert torch.equal(rounded, layer.input_layernorm(x).bfloat16())
    assert whole.dtype == torch.float32
    for adapted in (apply_lora(llama(), LoRAConfig(rank=4)), apply_lora(model, LoRAConfig(rank=4))):
        fuse_layers(adapted, lambda adapted=adapted: hidden_of(adapted))
        norm: Any = adapted.base_model.model.model.layers[0].input_layernorm  # type: ignore[union-attr]
        with training_by(have()), torch.autocast("cpu", dtype=torch.bfloat16):
            assert norm(x).dtype == torch.float32, "adapters read it, whenever they came"


def test_a_residual_stream_that_begins_behind_a_norm_is_not_rounded():
    """As in MiniMax, whose full-attention layers look like those of any other model."""
    config = hf.MiniMaxConfig(
        **CONFIG, head_dim=16, num_local_experts=4, num_experts_per_tok=2, layer_types=["full_attention"] * 2
    )
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    fuse_layers(model, lambda: hidden_of(model))
    norm, x = model.model.layers[0].input_layernorm, torch.randn(1, 5, 64)
    with training_by(have()), torch.autocast("cpu", dtype=torch.bfloat16):
        assert kind_of(norm) is not type(norm), "it is computed by a kernel"
        assert norm(x).dtype == torch.float32
    fuse_layers(model)
    plain = llama()
    fuse_layers(plain)
    with training_by(have()), torch.autocast("cpu", dtype=torch.bfloat16):
        assert plain.model.layers[0].input_layernorm(x).dtype == torch.float32, "nothing was tried"


def test_copies_have_the_class_that_the_model_came_with():
    model = llama()
    names = [type(module).__name__ for module in model.modules()]
    shown = repr(model)
    fuse_layers(model)
    assert [type(module).__name__ for module in model.modules()] == names
    assert repr(model) == shown
    assert list(map(kind_of, model.modules())) == list(map(type, llama().modules()))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        norm, theirs = other.model.norm, model.model.norm
        assert type(norm) is LlamaRMSNorm is not type(theirs)
        assert type(other.model.layers[0].mlp) is LlamaMLP
        assert torch.equal(norm.weight, theirs.weight)
        assert norm.weight is not theirs.weight
        with torch.no_grad():
            norm.weight.fill_(3.0)
            assert norm(torch.ones(64))[0] == pytest.approx(3.0)
            assert theirs(torch.ones(64))[0] == pytest.approx(1.0)
