"""Attention by matrix products gives what PyTorch's kernel gives, and stands aside where it would not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from posttrain.models import short_attention
from posttrain.models.packed_attention import RowAttention, _packed_attention
from posttrain.models.packing import make_buckets, pack
from posttrain.models.short_attention import MOST_KEYS
from posttrain.types import Tokens

by_kernel = _packed_attention(sdpa_attention_forward)
by_products = _packed_attention(sdpa_attention_forward, by_products=True)

Family = tuple[int, tuple[int, ...]]
"""Tokens that its rows have in common, and those that each has of its own."""
FAMILIES: dict[str, list[Family]] = {
    "rows of one length": [(0, (9,)), (0, (9,)), (0, (9,))],
    "rows of several lengths": [(0, (70,)), (0, (61,)), (0, (2,)), (0, (1,))],
    "prompts with answers": [(20, (70, 66, 5, 1)), (18, (4, 4)), (0, (40,))],
}
HEADS = {
    "a head each": (4, 4, 8),
    "grouped heads": (4, 2, 8),
    "values of another width, as in latent attention": (4, 2, 6),
}
"""Heads of queries and of keys, width of values; queries and keys are 8 wide."""


def rows_of(families: list[Family], *, window: int = 10**6) -> RowAttention:
    """Each token sees those before it in its row, up to a window."""
    ids = [
        [1000 * n + t for t in range(p)] + [j] * own
        for n, (p, each) in enumerate(families)
        for j, own in enumerate(each)
    ]
    lengths_B = torch.tensor([len(row) + 1 for row in ids])
    padded_BT = torch.zeros(len(ids), int(lengths_B.max()), dtype=torch.long)
    scored_BT = torch.zeros_like(padded_BT, dtype=torch.bool)
    for row, own in enumerate(ids):
        padded_BT[row, : len(own)] = torch.tensor(own)
        scored_BT[row, len(own)] = True  # so that every token before it is needed
    packed = pack(Tokens(input_ids_BT=padded_BT, lengths_B=lengths_B), scored_BT)
    buckets = make_buckets(packed.segments, torch.device("cpu"))
    return RowAttention(buckets, tuple(_mask(b.longest, b.prefix_length, window) for b in buckets))


def _mask(queries: int, prefix: int, window: int) -> Tensor | None:
    if prefix == 0 and window > queries:
        return None
    seen_TS = torch.ones(queries, prefix + queries, dtype=torch.bool)
    return (seen_TS.tril(prefix) & seen_TS.triu(prefix - window + 1))[None, None]


def draw(rows: RowAttention, heads: str, dtype: torch.dtype) -> tuple[list[Tensor], nn.Module]:
    """Query, key, value as a model gives them, the gradient of the output; the module that attends."""
    query_heads, kv_heads, width = HEADS[heads]
    noise, tokens = torch.Generator().manual_seed(0), rows.buckets[-1].stop
    shapes = [(query_heads, 8), (kv_heads, 8), (kv_heads, width), (query_heads, width)]
    drawn = [torch.randn(1, tokens, *shape, generator=noise, dtype=torch.float64).to(dtype) for shape in shapes]
    module = nn.Module()
    module.num_key_value_groups, module.is_causal = query_heads // kv_heads, True  # type: ignore[assignment]
    return [*(x.transpose(1, 2) for x in drawn[:3]), drawn[3]], module


def outputs_and_gradients(attend: Any, rows: RowAttention, tensors: list[Tensor], module: nn.Module) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in tensors[:3]]
    output = attend(module, *leaves, rows)[0]
    return [output.detach(), *torch.autograd.grad(output, leaves, tensors[3])]


@pytest.fixture
def always(monkeypatch):
    """Whatever the precision: float64, too, in which it is never taken by itself."""
    monkeypatch.setattr(short_attention, "pays", lambda *_: True)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("window", [10**6, 5])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("families", FAMILIES)
def test_outputs_and_gradients_are_those_of_the_fused_kernel(families, heads, window):
    rows = rows_of(FAMILIES[families], window=window)
    tensors, module = draw(rows, heads, torch.float64)
    expected = outputs_and_gradients(by_kernel, rows, tensors, module)
    actual = outputs_and_gradients(by_products, rows, tensors, module)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("most", [5, 24, 60, 80])
def test_grids_that_are_too_long_go_through_the_kernel_beside_those_that_are_not(monkeypatch, most):
    """A branch may be short and its trunk, in which its prefix stands, not."""
    rows = rows_of(FAMILIES["prompts with answers"])
    keys = [bucket.prefix_length + bucket.longest for bucket in rows.buckets]
    tensors, module = draw(rows, "grouped heads", torch.float64)
    expected = outputs_and_gradients(by_kernel, rows, tensors, module)
    monkeypatch.setattr(short_attention, "MOST_KEYS", most)
    assert (min(keys) > most) == (most == 5)
    assert max(keys) > most
    actual = outputs_and_gradients(by_products, rows, tensors, module)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("numbers", [1, 3 * 4 * 9 * 9 - 1, 2**30])
def test_rows_one_by_one_in_slabs_and_all_at_once_are_the_same(monkeypatch, numbers):
    """Three rows: the second case has a slab of two and one of one."""
    rows = rows_of(FAMILIES["rows of one length"])
    tensors, module = draw(rows, "grouped heads", torch.float64)
    expected = outputs_and_gradients(by_kernel, rows, tensors, module)
    monkeypatch.setattr(short_attention, "SLAB_NUMBERS", numbers)
    actual = outputs_and_gradients(by_products, rows_of(FAMILIES["rows of one length"]), tensors, module)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("families", FAMILIES)
@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 2**-22), (torch.bfloat16, 0.006)])
def test_it_is_as_near_to_float64_as_the_fused_kernel(dtype, rounding, families, heads):
    """Or within what four roundings do: for values of another width PyTorch computes bfloat16 in float32 throughout."""
    rows = rows_of(FAMILIES[families])
    tensors, module = draw(rows, heads, dtype)
    exact = outputs_and_gradients(by_kernel, rows, [x.double() for x in tensors], module)
    fused = outputs_and_gradients(by_kernel, rows, tensors, module)
    ours = outputs_and_gradients(by_products, rows, tensors, module)
    for found, other, right in zip(ours, fused, exact, strict=True):
        assert found.dtype == dtype
        assert (found - right).norm() <= max(1.5 * (other - right).norm(), rounding * right.norm())


def taken(rows: RowAttention, tensors: list[Tensor], module: nn.Module, **settings: Any) -> bool:
    query, key, value = (x.detach().requires_grad_() for x in tensors[:3])
    output, _ = by_products(module, query, key, value, rows, **settings)
    functions, found = [output.grad_fn], set[str]()
    while functions:
        function = functions.pop()
        found.add(type(function).__name__)
        functions += [] if function is None else [before for before, _ in function.next_functions]
    return "_AttentionBackward" in found


def test_it_is_taken_on_a_cpu_for_short_rows_in_the_precisions_of_training_and_nowhere_else():
    rows = rows_of(FAMILIES["prompts with answers"])
    for dtype in (torch.float32, torch.bfloat16):
        tensors, module = draw(rows, "grouped heads", dtype)
        assert taken(rows, tensors, module)
    assert not taken(rows_of(FAMILIES["prompts with answers"]), tensors, module, dropout=0.1)
    assert not taken(rows, draw(rows, "grouped heads", torch.float64)[0], module)
    long = rows_of([(0, (MOST_KEYS + 1,))])
    assert not taken(long, *draw(long, "grouped heads", torch.bfloat16))
    additive = RowAttention(rows.buckets, tuple(torch.zeros(1, 1, 1, 1, dtype=torch.bfloat16) for _ in rows.buckets))
    assert not taken(additive, tensors, module)
    fits = rows_of([(0, (MOST_KEYS,))])
    assert taken(fits, *draw(fits, "grouped heads", torch.bfloat16))


def test_a_module_that_is_not_causal_keeps_its_own_attention():
    rows = rows_of(FAMILIES["rows of one length"])
    tensors, module = draw(rows, "a head each", torch.bfloat16)
    module.is_causal = False  # type: ignore[assignment]
    assert not taken(rows, tensors, module)


def test_layers_with_other_heads_have_slabs_of_their_own():
    rows = rows_of(FAMILIES["prompts with answers"])
    for heads in ("a head each", "grouped heads"):
        tensors, module = draw(rows, heads, torch.float32)
        exact = outputs_and_gradients(by_kernel, rows, [x.double() for x in tensors], module)
        actual = outputs_and_gradients(by_products, rows, tensors, module)
        torch.testing.assert_close(actual, [x.float() for x in exact], rtol=0, atol=1e-5)
    assert len(rows.cuts) == 2
