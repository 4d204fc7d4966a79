"""Attention by matrix products equals PyTorch's kernel, and is not used if it would differ."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from posttrain.cpu import segment_attention
from posttrain.cpu.onednn import onednn_products
from posttrain.cpu.segment_attention import _ShortAttention, grid_attention
from posttrain.models.footprint import SHORT_KEYS

CASES = {
    "causal": (3, 4, 4, 9, 9, 8),
    "grouped heads": (3, 4, 2, 9, 9, 8),
    "after a prefix": (2, 4, 2, 5, 12, 8),
    "one query": (2, 4, 2, 1, 6, 8),
    "values of another width, as in latent attention": (3, 4, 2, 5, 12, 6),
}
"""Rows, query heads, key heads, queries, keys, width of values."""


def draw(case: str, dtype: torch.dtype) -> tuple[list[Tensor], Tensor | None, nn.Module]:
    """Query, key, value and output gradient; the mask for queries at the end; the module that attends."""
    rows, heads, kv_heads, queries, keys, values = CASES[case]
    noise = torch.Generator().manual_seed(0)
    shapes = [(heads, queries, 8), (kv_heads, keys, 8), (kv_heads, keys, values), (queries, heads, values)]
    tensors = [torch.randn(rows, *shape, generator=noise, dtype=torch.float64).to(dtype) for shape in shapes]
    mask = None if queries == keys else torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)[None, None]
    module = nn.Module()
    module.num_key_value_groups, module.is_causal = heads // kv_heads, True  # type: ignore[assignment]
    return tensors, mask, module


def outputs_and_gradients(attend, tensors: list[Tensor]) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in tensors[:3]]
    output = attend(*leaves)
    return [output.detach(), *torch.autograd.grad(output, leaves, tensors[3])]


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_are_those_of_the_fused_kernel(case):
    """The test uses float64, for which it is never chosen automatically."""
    tensors, mask, module = draw(case, torch.float64)
    queries, keys = CASES[case][3:5]
    seen_TS = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    expected = outputs_and_gradients(lambda q, k, v: sdpa_attention_forward(module, q, k, v, mask)[0], tensors)
    actual = outputs_and_gradients(
        lambda q, k, v: _ShortAttention.apply(q, k, v, seen_TS, 8**-0.5).transpose(1, 2), tensors
    )
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("numbers", [1, 2 * 4 * 9 * 9, 2**30])
def test_rows_one_by_one_in_slabs_and_all_at_once_are_the_same(monkeypatch, numbers):
    """Three rows: the second case has a slab of two rows and one of one row."""
    tensors, _, _ = draw("grouped heads", torch.float64)
    seen_TS = torch.ones(9, 9, dtype=torch.bool).tril()
    attend = lambda q, k, v: _ShortAttention.apply(q, k, v, seen_TS, 8**-0.5).transpose(1, 2)  # noqa: E731
    expected = outputs_and_gradients(attend, tensors)
    monkeypatch.setattr(segment_attention, "SLAB_NUMBERS", numbers)
    torch.testing.assert_close(outputs_and_gradients(attend, tensors), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("case", CASES)
def test_in_bfloat16_it_is_as_near_to_float64_as_the_fused_kernel(case):
    """Or within one rounding of bfloat16: for values of another width PyTorch computes in float32 throughout."""
    tensors, mask, module = draw(case, torch.bfloat16)
    exact = outputs_and_gradients(
        lambda q, k, v: sdpa_attention_forward(module, q, k, v, mask)[0], [x.double() for x in tensors]
    )
    fused = outputs_and_gradients(lambda q, k, v: sdpa_attention_forward(module, q, k, v, mask)[0], tensors)
    ours = outputs_and_gradients(lambda q, k, v: grid_attention(module, q, k, v, mask, {}), tensors)
    for found, other, right in zip(ours, fused, exact, strict=True):
        assert found.dtype == torch.bfloat16
        assert (found - right).norm() <= max(1.5 * (other - right).norm(), 2**-8 * right.norm())


def taken(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, module: nn.Module, **settings) -> bool:
    return grid_attention(module, query.requires_grad_(), key, value, mask, settings) is not None


def test_it_is_taken_for_short_rows_where_products_are_fast_and_nowhere_else():
    (query, key, value, _), mask, module = draw("after a prefix", torch.bfloat16)
    assert taken(query, key, value, mask, module)
    assert not taken(query.float().detach(), key.float(), value.float(), mask, module), "float32 without oneDNN"
    assert not taken(query, key, value, mask, module, dropout=0.1)
    additive = torch.zeros(mask.shape, dtype=torch.bfloat16)
    assert not taken(query, key, value, additive, module)
    long = torch.zeros(1, 4, SHORT_KEYS + 1, 8, dtype=torch.bfloat16)
    assert not taken(long.clone(), long, long, None, module)


def test_a_module_that_is_not_causal_keeps_its_own_attention():
    (query, key, value, _), mask, module = draw("causal", torch.bfloat16)
    module.is_causal = False  # type: ignore[assignment]
    assert not taken(query, key, value, mask, module)


def test_in_float32_it_is_taken_while_products_go_through_onednn():
    (query, key, value, _), mask, module = draw("causal", torch.float32)
    with onednn_products():
        assert taken(query, key, value, mask, module)
