"""Attention of packed segments by a kernel equals the attention of each row alone, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import examples, few
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from posttrain.config import LoRAConfig
from posttrain.cpu import kernels as made
from posttrain.cpu import segment_attention as module
from posttrain.cpu.kernel_formulas import Families
from posttrain.cpu.kernels import kernels, why_none
from posttrain.cpu.segment_attention import families, segment_attention
from posttrain.models.adapters import apply_lora
from posttrain.models.compute import Compute
from posttrain.models.forward import token_logprobs
from posttrain.models.packing import Segment, pack_whole
from posttrain.types import Tokens

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"no compiled kernels: {why_none()}")
FORWARD, BACKWARD = "attend_segments", "attend_segments_backward"


class _Counted:
    """The kernels of this machine, with a record of their calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(kernels(), name)


def tokens_of(rows: list[list[int]]) -> Tokens:
    ids_BT = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    return Tokens(input_ids_BT=ids_BT, lengths_B=torch.tensor([len(row) for row in rows]))


def drawn(segments: tuple[Segment, ...], heads: tuple[int, int], widths: tuple[int, int]) -> list[Tensor]:
    """Random queries, keys, values and output gradients, in float64."""
    length, noise = sum(s.length for s in segments), torch.Generator().manual_seed(0)
    shapes = [(heads[0], widths[0]), (heads[1], widths[0]), (heads[1], widths[1]), (heads[0], widths[1])]
    return [torch.randn(length, *shape, generator=noise, dtype=torch.float64) for shape in shapes]


def by_formula(segments: tuple[Segment, ...], tensors: list[Tensor], scaling: float) -> list[Tensor]:
    """The output and the three gradients, one segment after the other: `softmax(q k^T) v` of the tokens that it
    sees."""
    query, key, value = (x.clone().requires_grad_() for x in tensors[:3])
    groups, outputs = query.shape[1] // key.shape[1], []
    for start, length, prefix_start, prefix in segments:
        seen = [*range(prefix_start, prefix_start + prefix), *range(start, start + length)]
        q_HTD = query[start : start + length].transpose(0, 1)
        k_HSD, v_HSE = (x[seen].transpose(0, 1).repeat_interleave(groups, dim=0) for x in (key, value))
        hidden_TS = torch.ones(length, len(seen), dtype=torch.bool).triu(prefix + 1)
        scores_HTS = (q_HTD @ k_HSD.transpose(1, 2) * scaling).masked_fill(hidden_TS, -torch.inf)
        outputs.append((scores_HTS.softmax(dim=-1) @ v_HSE).transpose(0, 1))
    out_LHE = torch.cat(outputs)
    return [out_LHE.detach(), *torch.autograd.grad(out_LHE, (query, key, value), tensors[3])]


def by_kernel(
    of: Families | None, tensors: list[Tensor], dtype: torch.dtype, by: object = None, **options: Any
) -> list[Tensor] | None:
    leaves = [x.to(dtype).requires_grad_() for x in tensors[:3]]
    if of is None:
        return None
    out_LHE = segment_attention(by or kernels(), of, nn.Module(), *leaves, options)  # type: ignore[arg-type]
    if out_LHE is None:
        return None
    return [out_LHE.detach(), *torch.autograd.grad(out_LHE, leaves, tensors[3].to(dtype))]


def assert_near(actual: list[Tensor] | None, expected: list[Tensor], tolerance: float) -> None:
    assert actual is not None
    for a, e in zip(actual, expected, strict=True):
        assert (a.double() - e).abs().max() <= tolerance * max(1.0, e.abs().max())


TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1.5e-2}
"""Tolerances relative to the largest number, or to 1, the scale of the inputs. bfloat16 rounds inputs and outputs."""
rows_that_begin_alike = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 70), st.integers(1, 90)), min_size=1, max_size=7
)


@examples(15, 40)
@given(
    rows_that_begin_alike,
    st.sampled_from([(4, 4), (4, 2), (6, 1)]),
    st.sampled_from([(16, 16), (32, 32), (48, 16)]),
    st.sampled_from(list(TOLERANCE)),
)
def test_outputs_and_gradients_are_those_of_each_row(rows, heads, widths, dtype):
    """Rows of three prompts or parts of them, as packing splits them; grouped heads; values of another width."""
    ids = [[100 * prompt + t for t in range(common)] + [1000 + n] * own for n, (prompt, common, own) in enumerate(rows)]
    segments = pack_whole(tokens_of(ids)).segments
    tensors = [x.to(dtype).double() for x in drawn(segments, heads, widths)]
    assert_near(
        by_kernel(families(segments), tensors, dtype, scaling=0.3),
        by_formula(segments, tensors, 0.3),
        TOLERANCE[dtype],
    )


def test_large_scores_do_not_overflow():
    """One key then has all the weight, and the others have none."""
    segments = (Segment(0, 50), Segment(50, 30, 0, 20))
    tensors = drawn(segments, (2, 2), (16, 16))
    tensors[0] *= 100
    found = by_kernel(families(segments), tensors, torch.float32, scaling=1.0)
    assert_near(found, by_formula(segments, tensors, 1.0), 1e-3)


@pytest.mark.parametrize("common", [0.0, 30.0, 300.0])
def test_gradients_are_as_exact_as_the_formula_where_all_scores_are_large(common):
    """Key biases can cause such scores: the rounding error of the log-sum grows with their size."""
    segments = (Segment(0, 256),)
    tensors = drawn(segments, (2, 2), (64, 64))
    tensors[0][..., 0] += common**0.5
    tensors[1][..., 0] += common**0.5
    tensors[2] += 1.0
    tensors = [x.float().double() for x in tensors]
    exact, in_float32 = (by_formula(segments, [x.to(d) for x in tensors], 1.0) for d in (torch.float64, torch.float32))
    found = by_kernel(families(segments), tensors, torch.float32, scaling=1.0)
    assert found is not None
    for actual, plain, expected in zip(found, in_float32, exact, strict=True):
        allowed = max(2e-6 * expected.abs().max(), 2 * (plain - expected).abs().max())
        assert (actual - expected).abs().max() <= allowed


def test_the_same_bits_whatever_the_number_of_threads():
    segments = (Segment(0, 90), Segment(90, 70), Segment(160, 40, 0, 33), Segment(200, 7, 0, 33))
    tensors = drawn(segments, (4, 2), (32, 32))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(by_kernel(families(segments), tensors, torch.float32))
    finally:
        torch.set_num_threads(before)
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others, strict=True))


@pytest.mark.parametrize(
    ("widths", "dtype", "options"),
    [
        ((32, 32), torch.float64, {}),
        ((8, 8), torch.float32, {}),
        ((32, 32), torch.float32, {"dropout": 0.1}),
        ((32, 32), torch.float32, {"softcap": 50.0}),
        ((32, 32), torch.float32, {"is_causal": False}),
    ],
    ids=["float64", "narrow heads", "dropout", "soft cap", "not causal"],
)
def test_what_the_kernel_does_not_know_is_left_to_others(widths, dtype, options):
    segments = (Segment(0, 20),)
    assert by_kernel(families(segments), drawn(segments, (2, 2), widths), dtype, **options) is None
    assert by_kernel(families(segments), drawn(segments, (2, 2), (32, 32)), torch.float32) is not None


@pytest.mark.parametrize(
    ("keys", "values"),
    [((4, 2, 32), (4, 2, 32)), ((12, 2, 32), (12, 2, 32)), ((8, 2, 32), (8, 1, 32)), ((8, 2, 16), (8, 2, 32))],
)
def test_tensors_that_are_not_of_these_tokens_are_not_read(keys, values):
    tensors = torch.randn(8, 4, 32), torch.randn(keys), torch.randn(values)
    made, of = kernels(), families([Segment(0, 8)])
    assert made is not None
    assert of is not None
    assert segment_attention(made, of, nn.Module(), *tensors, {}) is None
    whole = torch.randn(8, 4, 32), torch.randn(8, 2, 32), torch.randn(8, 2, 32)
    assert segment_attention(made, of, nn.Module(), *whole, {}) is not None


def test_rows_that_are_too_long_and_threads_without_work_are_left_to_others(monkeypatch):
    monkeypatch.setattr(module, "MOST_KEYS", 30)
    assert families([Segment(0, 20), Segment(20, 11, 0, 20)]) is None
    assert families([Segment(0, 20), Segment(20, 5, 0, 10), Segment(25, 5, 0, 12)]) is None, "one prefix in a family"
    of = families([Segment(0, 20), Segment(20, 10, 0, 20)])
    assert of is not None
    tensors = drawn((Segment(0, 30),), (2, 1), (32, 32))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert by_kernel(of, tensors, torch.float32) is None, "one family, one key head: two threads of three would wait"


# ---------------------------------------------------------------- in models

_SIZES = {"vocab_size": 61, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2}
_SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "head_dim": 16}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_EXPERTS |= {"experts_implementation": "eager"}  # the grouped kernel does not support float64
_MODELS: dict[str, tuple[Callable[[], hf.PreTrainedConfig], int]] = {
    "dense": (lambda: hf.LlamaConfig(**_SIZES), 2),
    "tied embeddings": (lambda: hf.Qwen3Config(**_SIZES, tie_word_embeddings=True), 2),
    "experts": (lambda: hf.Qwen3MoeConfig(**_SIZES, **_EXPERTS), 2),
    "a window wider than the rows": (lambda: hf.MistralConfig(**_SIZES, sliding_window=64), 2),
    "a window": (lambda: hf.MistralConfig(**_SIZES, sliding_window=8), 0),
    "a window in every other layer": (
        lambda: hf.Gemma3TextConfig(**_SIZES, layer_types=["sliding_attention", "full_attention"], sliding_window=8),
        1,
    ),
}
"""Configurations, with the number of layers, of two, whose attention is purely causal."""


def trained(model: nn.Module, compute: Compute, dtype: torch.dtype) -> list[Tensor]:
    """Log-probabilities of a group of four and a pair of other rows, and the gradients of all trained parameters."""
    prompt = list(range(3, 25))
    rows = [[*prompt, *[30 + n] * (5 + 3 * n)] for n in range(4)] + [[*range(40, 50)], [7] * 13]
    tokens = tokens_of(rows)
    mask_BT = (torch.arange(tokens.input_ids_BT.shape[1]) >= 4) & (tokens.input_ids_BT > 0)
    with compute.scope(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        logprobs_BT = token_logprobs(model, tokens, mask_BT, temperature=1.0).logprobs_BT
        weights_BT = torch.linspace(-1, 2, logprobs_BT.numel()).view_as(logprobs_BT)
        parameters = [p for p in model.parameters() if p.requires_grad]
        return [logprobs_BT.detach(), *torch.autograd.grad((weights_BT * logprobs_BT).sum(), parameters)]


@pytest.mark.parametrize(
    ("name", "lora", "dtype"),
    few(
        [(name, lora, dtype) for name in _MODELS for lora in (False, True) for dtype in TOLERANCE],
        *[("dense", False, torch.bfloat16), ("dense", True, torch.float32), ("experts", True, torch.bfloat16)],
        ("a window in every other layer", False, torch.float32),
    ),
)
def test_a_model_computes_what_it_computes_without_kernels(name, lora, dtype, monkeypatch):
    """Float32 is within 1e-5 of PyTorch in float64; bfloat16 has no larger error than PyTorch's own attention."""
    config, layers = _MODELS[name]
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config(), dtype=torch.float32)
    if lora:
        model = apply_lora(model, LoRAConfig(rank=4))
        for key, parameter in model.named_parameters():
            if "lora_B" in key:
                nn.init.normal_(parameter, std=0.1)
    model.eval()
    counted = _Counted()
    monkeypatch.setattr(made, "chosen", lambda compute: counted if compute.kernels == "compiled" else None)
    plain, found = (trained(model, compute, dtype) for compute in (Compute(), Compute(kernels="compiled")))
    assert [name for name in counted.calls if "attend" in name] == [FORWARD] * layers + [BACKWARD] * layers
    exact = trained(model.double(), Compute(), torch.float64)

    def error(tensors: list[Tensor]) -> list[float]:
        return [float((a - e).abs().max() / e.abs().max()) for a, e in zip(tensors, exact, strict=True)]

    worst, worst_of_plain = max(error(found)), max(error(plain))
    assert worst <= (1e-5 if dtype == torch.float32 else 1.5 * worst_of_plain)


def test_recomputed_activations_give_the_same(monkeypatch):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(hf.LlamaConfig(**_SIZES), dtype=torch.float32).train()
    counted = _Counted()
    monkeypatch.setattr(made, "chosen", lambda compute: counted)
    expected = trained(model, Compute(kernels="compiled"), torch.float32)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    counted.calls.clear()
    found = trained(model, Compute(kernels="compiled"), torch.float32)
    assert counted.calls.count(FORWARD) == 2 * 2, "each layer is computed twice"
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
