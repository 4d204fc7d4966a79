"""Compiled kernels compute their formulas, bit by bit the same in any batch, or are not used."""

from __future__ import annotations

import math
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import examples, few
from tests.engines.policies import Settings
from torch import Tensor

from posttrain.cpu import kernel_formulas as compiling
from posttrain.cpu import kernels as module
from posttrain.cpu.choice import EXACT
from posttrain.cpu.kernel_formulas import COMPILER, RowPlaces, Unavailable, check, compiled, find_compiler, in_panels
from posttrain.cpu.kernels import LANES, SOURCE, SWITCH, Kernels, kernels, made_by, why_none
from posttrain.engines.sampling import choose

needs_compiler = pytest.mark.skipif(not shutil.which(COMPILER), reason="needs a C++ compiler")
PRECISIONS = [torch.float32, torch.bfloat16]


@pytest.fixture
def found() -> Kernels:
    have = kernels()
    assert have is not None, why_none()
    return have


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# ---------------------------------------------------------------- linear layers


@needs_compiler
@examples(20, 60)
@given(
    rows=st.lists(st.integers(0, 40), min_size=1, max_size=2),
    inputs=st.integers(1, 70),
    outputs=st.integers(1, 15),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_linear_layer_is_its_formula_for_any_shape(rows, inputs, outputs, bias, seed):
    have = kernels()
    assert have is not None, why_none()
    torch.manual_seed(seed)
    outputs *= LANES
    x, weight, offset = torch.randn(*rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
    found = have.linear(x, in_panels(weight), offset if bias else None, outputs)
    exact = x.double() @ weight.T.double() + (offset.double() if bias else 0)
    assert found.shape == exact.shape
    torch.testing.assert_close(found.double(), exact, rtol=2e-6, atol=2e-6 * inputs)


@needs_compiler
def test_a_linear_layer_reads_a_view_with_strides_of_its_own_as_what_it_is(found):
    x, weight = torch.randn(4, 5, 24).transpose(0, 1)[..., ::3], torch.randn(48, 8)
    torch.testing.assert_close(found.linear(x, in_panels(weight), None, 48), x @ weight.T)


def skip_without_pairs(found: Kernels) -> None:
    if not found.can_multiply(torch.bfloat16, 2, LANES):
        pytest.skip("no products of bfloat16 in pairs on this processor, or better ones in tiles")


@needs_compiler
@examples(20, 60)
@given(
    rows=st.lists(st.integers(0, 40), min_size=1, max_size=2),
    pairs=st.integers(1, 70),
    outputs=st.integers(1, 15),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_bfloat16_linear_layer_is_its_formula_rounded_once_for_any_shape(rows, pairs, outputs, bias, seed):
    have = kernels()
    assert have is not None, why_none()
    skip_without_pairs(have)
    torch.manual_seed(seed)
    outputs, inputs = outputs * LANES, 2 * pairs
    x, weight, offset = torch.randn(*rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
    x, weight, offset = x.bfloat16(), weight.bfloat16(), offset.bfloat16()
    found = have.linear(x, in_panels(weight), offset if bias else None, outputs)
    exact = x.double() @ weight.T.double() + (offset.double() if bias else 0)
    assert (found.shape, found.dtype) == (exact.shape, torch.bfloat16)
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=2e-6 * inputs)


@needs_compiler
def test_a_view_in_bfloat16_that_begins_at_an_odd_number_is_read_from_there(found):
    skip_without_pairs(found)
    numbers, weight = torch.randn(1 + 5 * 8).bfloat16(), torch.randn(48, 8).bfloat16()
    x = numbers[1:].view(5, 8)
    torch.testing.assert_close(found.linear(x, in_panels(weight), None, 48), x @ weight.T)


def test_panels_of_bfloat16_keep_pairs_of_inputs_together():
    weight = torch.arange(80 * 4).view(80, 4).bfloat16()
    first, rest = in_panels(weight).split([64 * 4, 16 * 4])
    assert torch.equal(first.view(2, 64, 2), weight[:64].view(64, 2, 2).transpose(0, 1))
    assert torch.equal(rest.view(2, 16, 2), weight[64:].view(16, 2, 2).transpose(0, 1))


def test_panels_are_made_of_a_bfloat16_weight_that_begins_at_an_odd_number():
    weight = torch.arange(1 + 64 * 4).bfloat16()[1:].view(64, 4)
    assert torch.equal(in_panels(weight), in_panels(weight.clone()))


@needs_compiler
def test_panels_and_a_bias_with_gaps_are_refused(found):
    x, panels = torch.ones(2, 4), in_panels(torch.ones(16, 4))
    with pytest.raises(AssertionError):
        found.linear(x, panels, torch.ones(32)[::2], 16)
    with pytest.raises(AssertionError):
        found.linear(x, panels, torch.ones(1).expand(16), 16)
    with pytest.raises(AssertionError):
        found.linear(x, torch.ones(128)[::2], None, 16)


@needs_compiler
@pytest.mark.parametrize(
    ("x", "bias", "outputs"),
    [
        (torch.ones(2, 4, dtype=torch.bfloat16), None, 16),
        (torch.ones(2, 4), torch.ones(16, dtype=torch.float64), 16),
        (torch.ones(2, 4), torch.ones(15), 16),
        (torch.ones(2, 4), None, 24),
        (torch.ones(2, 0), None, 16),
        (torch.ones(2, 4, dtype=torch.float64), None, 16),
    ],
)
def test_what_a_linear_layer_would_misread_is_refused(x, bias, outputs, found):
    with pytest.raises(AssertionError):
        found.linear(x, in_panels(torch.ones(outputs, x.shape[-1])), bias, outputs)


@needs_compiler
def test_bfloat16_of_a_float32_weight_and_an_odd_number_of_inputs_are_refused(found):
    half = torch.ones(2, 4).bfloat16()
    with pytest.raises(AssertionError):
        found.linear(half, in_panels(torch.ones(16, 4)), None, 16)
    with pytest.raises(AssertionError):
        found.linear(half, in_panels(torch.ones(16, 4).bfloat16()), torch.ones(16), 16)
    assert not found.can_multiply(torch.bfloat16, 5, 16)


@needs_compiler
@pytest.mark.parametrize("inputs", [64, 1024, 8192])
def test_a_linear_layer_is_as_exact_as_that_of_pytorch(inputs, found):
    """Root mean square error against float64; one sum over that many numbers in a fixed order is as exact, too."""
    torch.manual_seed(0)
    x, weight = torch.randn(20, inputs), torch.randn(128, inputs)
    exact = x.double() @ weight.T.double()
    ours, theirs = found.linear(x, in_panels(weight), None, 128), x @ weight.T
    assert (ours - exact).square().mean().sqrt() <= EXACT * (theirs - exact).square().mean().sqrt()


@needs_compiler
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_a_row_of_a_linear_layer_gets_the_same_bits_in_any_batch_and_with_any_threads(dtype, found, threads):
    if dtype == torch.bfloat16:
        skip_without_pairs(found)
    torch.manual_seed(0)
    x, panels = torch.randn(37, 50).to(dtype), in_panels(torch.randn(208, 50).to(dtype))
    x[5, 7] = float("nan")
    together = found.linear(x, panels, None, 208)
    assert together[5].isnan().all()
    assert together[[*range(5), *range(6, 37)]].isfinite().all()
    for count in (1, 3):
        torch.set_num_threads(count)
        for start, stop in ((0, 1), (5, 6), (3, 17), (2, 31)):
            part = found.linear(x[start:stop], panels, None, 208)
            assert torch.equal(part.nan_to_num(), together[start:stop].nan_to_num())


# ---------------------------------------------------------------- attention


class Case:
    """Rows after prompts, with numbers in every column of the cache, also in those that no row attends to."""

    def __init__(
        self, *, prompt_n: list[int], lengths: list[int], ages: list[int], K: int, G: int, D: int, dtype: torch.dtype
    ) -> None:
        self.prompt_n, self.lengths, self.ages, self.G = prompt_n, lengths, ages, G
        n, P, room_p, room_s = len(prompt_n), len(lengths), _room(max(lengths)) + 16, _room(max(ages) + 1)
        self.qkv = torch.randn(n, K * G + 2 * K, D).to(dtype)
        self.prompts = torch.randn(P, K, D, room_p).to(dtype), torch.randn(P, K, room_p, D).to(dtype)
        self.rows = torch.randn(n, K, D, room_s).to(dtype), torch.randn(n, K, room_s, D).to(dtype)
        self.columns = _room(max(lengths))
        hidden = torch.rand(n, self.columns + room_s) < 0.3
        for row, (prompt, age) in enumerate(zip(prompt_n, ages, strict=True)):
            hidden[row, [lengths[prompt] - 1, self.columns + age]] = False
        self.mask = torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf).to(dtype)

    def attend(self, found: Kernels, *, masked: bool) -> Tensor:
        places, ages = RowPlaces.of(self.prompt_n, self.lengths), torch.tensor(self.ages)
        mask = self.mask if masked else None
        given = (self.qkv, places, ages, self.prompts, self.rows, 0.3)
        return found.attend_rows(*given, mask, self.columns)

    def expected(self, *, masked: bool) -> Tensor:
        """softmax(scaling q K + mask) V of one row after the other, in float64."""
        outputs = []
        for row, (prompt, age) in enumerate(zip(self.prompt_n, self.ages, strict=True)):
            length, K = self.lengths[prompt], self.rows[0].shape[1]
            query, key, value = self.qkv[row].double().split([K * self.G, K, K])
            before_K, own_K = self.prompts[0][prompt, ..., :length], self.rows[0][row, ..., :age]
            before_V, own_V = self.prompts[1][prompt, :, :length], self.rows[1][row, :, :age]
            keys = torch.cat([before_K.double(), own_K.double(), key[..., None]], dim=-1)
            values = torch.cat([before_V.double(), own_V.double(), value[:, None]], dim=1)
            seen = [*range(length), *range(self.columns, self.columns + age + 1)]
            scores = 0.3 * query.view(K, self.G, -1) @ keys + (self.mask[row, seen].double() if masked else 0)
            outputs.append((scores.softmax(dim=-1) @ values).flatten())
        return torch.stack(outputs)


def _room(columns: int) -> int:
    return -(-columns // 16) * 16


@needs_compiler
@examples(20, 60)
@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), min_size=1, max_size=21),
    lengths=st.lists(st.integers(1, 70), min_size=3, max_size=3),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 5), st.sampled_from([32, 64, 96, 128, 160])),
    dtype=st.sampled_from(PRECISIONS),
    masked=st.booleans(),
    seed=st.integers(0, 99),
)
def test_rows_attend_as_the_formula_says(rows, lengths, sizes, dtype, masked, seed):
    """The new tokens are at the place where the next pass looks for them, and all earlier ones are unchanged."""
    torch.manual_seed(seed)
    K, G, D = sizes
    prompt_n, ages = [prompt for prompt, _ in rows], [age for _, age in rows]
    case = Case(prompt_n=prompt_n, lengths=lengths, ages=ages, K=K, G=G, D=D, dtype=dtype)
    expected, stored = case.expected(masked=masked), [x.clone() for x in (*case.prompts, *case.rows)]
    have = kernels()
    assert have is not None, why_none()
    actual = case.attend(have, masked=masked)
    tolerance = 3e-6 if dtype == torch.float32 else 4e-3  # half a unit in the last place of bfloat16
    assert (actual.double() - expected).abs().max() <= tolerance * expected.abs().max()
    for row, age in enumerate(ages):
        stored[2][row, :, :, age], stored[3][row, :, age] = case.qkv[row].split([K * G, K, K])[1:]
    assert all(torch.equal(a, b) for a, b in zip((*case.prompts, *case.rows), stored, strict=True))


@needs_compiler
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_a_row_gets_the_same_bits_whatever_is_beside_it_and_however_many_threads(dtype, found, threads):
    torch.manual_seed(0)
    ages = [3, 0, 39, 17, 5, 8, 21, 33, 2, 2, 16]
    prompt_n = [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    case = Case(prompt_n=prompt_n, lengths=[37, 64], ages=ages, K=2, G=3, D=64, dtype=dtype)
    together = {}
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        together[count] = case.attend(found, masked=False)
    assert torch.equal(together[1], together[2])
    assert torch.equal(together[1], together[3])
    for row, prompt in enumerate(prompt_n):
        places = RowPlaces.of([prompt], case.lengths)
        own = case.rows[0][row : row + 1].clone(), case.rows[1][row : row + 1].clone()
        given = (case.qkv[row : row + 1], places, torch.tensor([ages[row]]), case.prompts, own, 0.3)
        assert torch.equal(found.attend_rows(*given, None, 64)[0], together[1][row])


@needs_compiler
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_is_no_number_comes_out_as_none(dtype, number, found):
    """A run stops at log-probabilities that are not finite, so a kernel must not make them finite."""
    torch.manual_seed(0)
    case = Case(prompt_n=[0, 0], lengths=[20], ages=[1, 4], K=1, G=2, D=32, dtype=dtype)
    case.qkv[1, 0, 7] = number
    attended = case.attend(found, masked=False).view(2, 2, 32)
    assert attended[1, 0].isnan().all()
    assert attended[0].isfinite().all()
    assert attended[1, 1].isfinite().all()
    x = torch.randn(2, 32).to(dtype)
    x[1, 3] = number
    normed = found.rms_norm(x, torch.ones(32), 1e-6)
    assert normed[1].isnan().any()
    assert normed[0].isfinite().all()
    assert not found.silu_gate(x).isfinite().all()


def test_rows_of_a_prompt_stand_beside_each_other():
    places = RowPlaces.of([1, 0, 1, 1, *[1] * 8], [5, 9])
    assert places.order_n.tolist() == [1, 0, *range(2, 12)]
    assert places.chunks.tolist() == [0, 1, 9, 12]
    assert places.lengths_n.tolist() == [9, 5, *[9] * 10]


# ---------------------------------------------------------------- norm, rotation, gate


@needs_compiler
@examples(20, 40)
@given(
    length=st.integers(1, 70),
    width=st.integers(1, 40),
    scale=st.sampled_from([1e-4, 1.0, 300.0]),
    dtype=st.sampled_from(PRECISIONS),
)
def test_norm_and_gate_are_their_formulas_rounded_once(length, width, scale, dtype):
    have = kernels()
    assert have is not None, why_none()
    torch.manual_seed(length)
    x, weight = (scale * torch.randn(length, 16 * width)).to(dtype), torch.randn(16 * width)
    tolerance = {"rtol": 2e-6, "atol": 1e-30} if dtype == torch.float32 else {"rtol": 4e-3, "atol": 1e-30}
    exact = x.double()
    expected = exact * (exact.square().mean(dim=-1, keepdim=True) + 1e-6).rsqrt() * weight.double()
    torch.testing.assert_close(have.rms_norm(x, weight, 1e-6).double(), expected, **tolerance)
    gate_up = (scale * torch.randn(length, 32 * width)).to(dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    expected = torch.where(gate < -87, 0.0, F.silu(gate) * up)  # there e^x is no normal number of float32
    torch.testing.assert_close(have.silu_gate(gate_up).double(), expected, **tolerance)


@needs_compiler
def test_silu_is_exact_to_a_few_units_in_the_last_place_everywhere(found):
    gate = torch.linspace(-86, 86, 32 * 4096).view(-1, 32)
    expected = F.silu(gate.double())
    actual = found.silu_gate(torch.cat([gate, torch.ones_like(gate)], dim=-1)).double()
    assert ((actual - expected) / expected).abs().max() < 4e-7


@needs_compiler
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_rotation_is_in_place_and_leaves_values_alone(dtype, found):
    torch.manual_seed(0)
    x, angle = torch.randn(9, 7, 64).to(dtype), torch.randn(9, 1, 64)
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    given = x.double()
    expected = given * cos.double() + given.roll(32, dims=-1) * sin.double()
    found.rotate_(x[:, :5], cos, sin)
    tolerance = {torch.float32: (1e-6, 1e-6), torch.bfloat16: (4e-3, 1e-6)}[dtype]
    torch.testing.assert_close(x[:, :5].double(), expected[:, :5], rtol=tolerance[0], atol=tolerance[1])
    assert torch.equal(x[:, 5:].double(), given[:, 5:])


@needs_compiler
def test_bfloat16_is_rounded_to_as_pytorch_does(found):
    """All bfloat16 numbers times a few factors: the products are exact in float32."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16)
    for factor in (1.0, 1.0078125, -0.65234375, 3.984375):
        x = bits.clone().view(-1, 1, 32)
        cos = torch.full_like(x, factor)
        found.rotate_(x, cos, torch.zeros_like(x))
        swapped = bits.view(-1, 1, 32).float().roll(16, dims=-1) * 0.0  # infinity times 0 is NaN
        expected = (bits.view(-1, 1, 32).float() * factor + swapped).bfloat16()
        assert torch.equal(x.isnan(), expected.isnan())
        assert torch.equal(x[~x.isnan()], expected[~x.isnan()])


# ---------------------------------------------------------------- experts


class Experts:
    """The weights of some experts, and the experts that rows chose."""

    def __init__(self, chosen: Tensor, *, X: int, E: int, inner: int, dtype: torch.dtype = torch.float32) -> None:
        self.chosen, self.shares = chosen, torch.randn(chosen.shape)
        self.x = torch.randn(len(chosen), E).to(dtype)
        self.weights = torch.randn(X, 2 * inner, E).to(dtype), torch.randn(X, E, inner).to(dtype)

    def compute(self, have: Kernels, rows: slice = slice(None)) -> Tensor:
        return have.experts(self.x[rows], *self.weights, self.chosen[rows], self.shares[rows])

    def expected(self) -> Tensor:
        """One expert of one row after the other, in float64."""
        out, (gate_up, down) = torch.zeros(self.x.shape).double(), self.weights
        for row, experts in enumerate(self.chosen.tolist()):
            for expert, share in zip(experts, self.shares[row].double(), strict=True):
                if 0 <= expert < len(down):
                    gate, up = (gate_up[expert].double() @ self.x[row].double()).chunk(2)
                    out[row] += share * (down[expert].double() @ (F.silu(gate) * up))
        return out


@needs_compiler
@examples(20, 60)
@given(
    routes=st.lists(st.tuples(*[st.integers(-1, 4)] * 3), max_size=20),
    repeated=st.sampled_from([1, 7]),
    one=st.booleans(),
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    dtype=st.sampled_from(PRECISIONS),
    seed=st.integers(0, 99),
)
def test_experts_are_their_formula_however_rows_are_routed(routes, repeated, one, sizes, dtype, seed):
    """All rows to one expert, experts without a row, an expert twice, and numbers of no expert, which add nothing."""
    torch.manual_seed(seed)
    chosen = torch.tensor(repeated * routes, dtype=torch.long).view(-1, 3)
    case = Experts(
        torch.full_like(chosen, 2) if one else chosen, X=4, E=16 * sizes[0], inner=16 * sizes[1], dtype=dtype
    )
    have = kernels()
    assert have is not None, why_none()
    found, expected = case.compute(have), case.expected()
    assert found.shape == expected.shape
    tolerance = 3e-6 if dtype == torch.float32 else 4e-3
    if expected.numel():
        assert (found.double() - expected).abs().max() <= tolerance * expected.abs().max()


@needs_compiler
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_a_row_of_experts_gets_the_same_bits_in_any_batch_and_with_any_threads(dtype, found, threads):
    """This includes batches with NaN rows, experts that many rows chose, and one that few chose."""
    torch.manual_seed(0)
    chosen = torch.stack([torch.arange(150) % 3, torch.arange(150) % 7 + 3], dim=1)
    case = Experts(chosen, X=10, E=80, inner=48, dtype=dtype)
    case.x[5, 7] = float("nan")
    together = case.compute(found)
    assert together[5].isnan().all()
    assert together[[*range(5), *range(6, 150)]].isfinite().all()
    for count in (1, 3):
        torch.set_num_threads(count)
        for start, stop in ((0, 1), (5, 6), (3, 17), (2, 131)):
            part = case.compute(found, slice(start, stop))
            assert torch.equal(part.nan_to_num(), together[start:stop].nan_to_num())


@needs_compiler
@pytest.mark.parametrize("inputs", [64, 1024, 4096])
def test_experts_are_as_exact_as_products_of_pytorch(inputs, found):
    """Root mean square error against float64."""
    torch.manual_seed(0)
    case = Experts(torch.zeros(20, 1, dtype=torch.long), X=1, E=inputs, inner=64)
    gate_up, down = (weight[0] for weight in case.weights)
    gate, up = (case.x @ gate_up.T).chunk(2, dim=-1)
    theirs = case.shares * ((F.silu(gate) * up) @ down.T)
    errors = [(x - case.expected()).square().mean().sqrt() for x in (case.compute(found), theirs)]
    assert errors[0] <= EXACT * errors[1]


@needs_compiler
@pytest.mark.parametrize("changed", ["width", "choices", "precision", "stored otherwise", "shares"])
def test_what_experts_would_misread_is_refused(changed, found):
    case = Experts(torch.zeros(2, 1, dtype=torch.long), X=2, E=32, inner=16)
    gate_up, down = case.weights
    if changed == "width":
        case.weights = gate_up[:, :16], down[:, :, :8].contiguous()
    elif changed == "choices":
        case.chosen = case.chosen.int()
    elif changed == "precision":
        case.weights = gate_up, down.bfloat16()
    elif changed == "stored otherwise":
        case.weights = gate_up.mT.contiguous().mT, down
    else:
        case.shares = torch.randn(2, 2)
    with pytest.raises(AssertionError):
        case.compute(found)


# ---------------------------------------------------------------- choosing a token


@needs_compiler
@examples(20, 60)
@given(
    rows=st.integers(1, 40),
    tokens=st.integers(1, 1100),
    scale=st.sampled_from([0.0, 1.0, 30.0]),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    dtype=st.sampled_from(PRECISIONS),
    seed=st.integers(0, 99),
)
def test_tokens_are_those_of_the_operations_of_pytorch(rows, tokens, scale, temperature, dtype, seed):
    """Only a uniform number within rounding of the border between two tokens may give the other one."""
    have = kernels()
    assert have is not None, why_none()
    torch.manual_seed(seed)
    logits, uniforms = (scale * torch.randn(rows, tokens)).to(dtype), torch.rand(rows, 2, dtype=torch.float64)
    uniforms[0] = 0.0
    whole = Settings(temperature=temperature)
    expected, expected_logprobs = choose(logits, whole, uniforms)
    ids, logprobs = have.choose(logits, uniforms, whole.temperature)
    assert (ids != expected).sum() <= 1
    exact = (logits.double() / temperature).log_softmax(dim=-1).gather(1, ids[:, None])[:, 0]
    rounding = 2e-6 + 2e-7 * float(logits.abs().max()) / temperature
    torch.testing.assert_close(logprobs.double(), exact, rtol=2e-6, atol=rounding)
    same = ids == expected
    torch.testing.assert_close(logprobs[same], expected_logprobs[same], rtol=2e-6, atol=2 * rounding)


@pytest.mark.slow
@needs_compiler
def test_tokens_are_drawn_as_often_as_they_are_likely(found):
    """All pairs of 400 equally spaced numbers; a token of probability 0 is never drawn."""
    torch.manual_seed(0)
    logits = torch.randn(600)
    logits[[0, 17, 599]] = -torch.inf
    steps = (torch.arange(400, dtype=torch.float64) + 0.5) / 400
    uniforms = torch.cartesian_prod(steps, steps)
    ids, _ = found.choose(logits.expand(len(uniforms), -1), uniforms, 1.0)
    share = ids.bincount(minlength=600) / len(uniforms)
    assert (share - logits.softmax(dim=-1)).abs().max() < 2e-3
    assert share[[0, 17, 599]].sum() == 0


@needs_compiler
def test_the_ends_of_the_uniform_numbers_draw_the_first_and_the_last_token_that_can_be(found):
    logits = torch.full((2, 300), -torch.inf)
    logits[:, [3, 40, 290]] = 0.0
    ends = torch.tensor([[0.0, 0.0], [1 - 2.0**-32, 1 - 2.0**-32]], dtype=torch.float64)
    ids, logprobs = found.choose(logits, ends, 1.0)
    assert ids.tolist() == [3, 290]
    assert logprobs.tolist() == pytest.approx([-math.log(3)] * 2)


@needs_compiler
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_logits_that_are_no_numbers_give_no_log_probability(dtype, found):
    logits = torch.randn(3, 300).to(dtype)
    logits[1, 299], logits[2, 5] = float("nan"), float("inf")
    ids, logprobs = found.choose(logits, torch.full((3, 2), 0.999, dtype=torch.float64), 1.0)
    assert logprobs.isfinite().tolist() == [True, False, False]
    assert ((ids >= 0) & (ids < 300)).all()


# ---------------------------------------------------------------- compiling


@pytest.fixture
def short(tmp_path):
    """A source that compiles quickly: these tests are about the library file."""
    source = tmp_path / "short.cpp"
    source.write_text('extern "C" int one() { return 1; }')
    return source


@needs_compiler
@pytest.mark.parametrize("whole", few([False, True], False), ids=["short source", "whole source"])
def test_a_library_is_compiled_once(whole, short, tmp_path, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path))
    monkeypatch.setattr(compiling, "FLAGS", ("-O0", *compiling.FLAGS[1:]))  # compiles in a quarter of the time
    compiler, source = find_compiler(), SOURCE if whole else short
    library = compiled(source, compiler)
    made = library.stat().st_mtime_ns
    monkeypatch.setattr(compiling, "_compile", None)
    assert compiled(source, compiler) == library
    assert library.stat().st_mtime_ns == made
    left = sorted(file.name for file in library.parent.iterdir())
    assert left == [library.with_suffix(".sha256").name, library.name], "no partial files"
    if whole:
        check(Kernels(library))


@needs_compiler
def test_a_damaged_library_is_made_anew(short, tmp_path, monkeypatch):
    """Loading a truncated library is a bus error, which no exception handler sees."""
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path))
    library = compiled(short, find_compiler())
    whole = library.read_bytes()
    for damaged in (b"", whole[:9000], whole[:-1] + b"x"):
        library.write_bytes(damaged)
        assert compiled(short, find_compiler()) == library
        assert library.read_bytes() == whole


@needs_compiler
def test_another_compiler_makes_a_library_of_its_own(short, tmp_path, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path))
    first = compiled(short, find_compiler())
    monkeypatch.setenv("CXX", "g++ -ffp-contract=off")
    other = find_compiler()
    assert other.command[1:] == ("-ffp-contract=off",)
    assert compiled(short, other) != first


@pytest.mark.slow
@needs_compiler
def test_processes_that_compile_at_once_all_get_a_whole_library(tmp_path):
    hasty = tmp_path / "hasty"
    hasty.write_text(f'#!/bin/sh\nexec {COMPILER} "$@" -O0\n')  # in a quarter of the time
    hasty.chmod(0o755)
    code = "from posttrain.cpu.kernels import kernels, why_none; assert kernels(), why_none()"
    environment = os.environ | {"POSTTRAIN_CACHE": str(tmp_path), "CXX": str(hasty)}
    started = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(3)]
    assert [process.wait(timeout=120) for process in started] == [0, 0, 0]
    assert len(list((tmp_path / "compiled").iterdir())) == 2


@pytest.mark.slow
@needs_compiler
@pytest.mark.skipif(platform.machine() != "x86_64", reason="instruction sets of x86")
@pytest.mark.parametrize("instructions", ["x86-64-v3", "x86-64-v2"])
def test_kernels_are_right_on_processors_with_narrower_registers(instructions, tmp_path, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path))
    monkeypatch.setattr(compiling, "FLAGS", tuple(f.replace("native", instructions) for f in compiling.FLAGS))
    check(Kernels(compiled(SOURCE, find_compiler())))


def test_why_there_is_no_compiler_is_said(tmp_path, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Unavailable, match=r"no C\+\+ compiler was found \(g\+\+\)"):
        find_compiler()
    monkeypatch.setenv("CXX", "g++ '")
    with pytest.raises(Unavailable, match=r"CXX is no command line \(No closing quotation\)"):
        find_compiler()
    monkeypatch.setenv("CXX", "/nowhere/icpx -O2")
    with pytest.raises(Unavailable, match=r"no C\+\+ compiler was found \(/nowhere/icpx\)"):
        find_compiler()
    text = tmp_path / "text"
    text.write_text("not a program")
    text.chmod(0o755)
    monkeypatch.setenv("CXX", str(text))
    with pytest.raises(Unavailable, match="text cannot be run"):
        find_compiler()


@needs_compiler
def test_why_a_library_cannot_be_kept_is_said(short, tmp_path, monkeypatch):
    taken = tmp_path / "file"
    taken.write_text("")
    monkeypatch.setenv("POSTTRAIN_CACHE", str(taken))
    with pytest.raises(Unavailable, match="cache folder cannot be used"):
        compiled(short, find_compiler())

    def homeless(name: str) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(compiling, "cache_folder", homeless)
    with pytest.raises(Unavailable, match=r"cache folder cannot be used \(Could not determine home"):
        compiled(short, find_compiler())


@needs_compiler
def test_a_source_that_does_not_compile_is_quoted(tmp_path, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path))
    source = tmp_path / "broken.cpp"
    source.write_text("int main( {")
    with pytest.raises(Unavailable, match=r"failed with exit code 1 \(.*error: "):
        compiled(source, find_compiler())
    assert not (tmp_path / "compiled").exists()


@needs_compiler
def test_a_compiler_that_never_ends_is_not_waited_for(short, tmp_path, monkeypatch):
    slow = tmp_path / "slow"
    slow.write_text('#!/bin/sh\n[ "$1" = --version ] || exec sleep 60\n')
    slow.chmod(0o755)
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", str(slow))
    compiler = find_compiler()
    monkeypatch.setattr(compiling, "MOST_SECONDS", 0.2)
    with pytest.raises(Unavailable, match=r"slow took more than 0\.2 seconds"):
        compiled(short, compiler)


WRONG = [
    ("sum(squares) / E + epsilon", "sum(squares) / E", "rms_norm"),
    ("a * cos_low + b * sin_low", "a * cos_low - b * sin_low", "rotate"),
    ("given.q) + (token + x / G) * given.q_stride", "given.q) + (token + x / G) * given.H * D", "attend_segments"),
    ("return x * (x < 0 ? small : all(1))", "return x * small", "silu_gate"),
    ("found + grouped.choices[begin + q] * E + e", "found + (begin + q) * E + e", "experts"),
    ("std::fill(score + seen_p", "if (0) std::fill(score + seen_p", "attend_rows"),
    ("drawn(running.data(), blocks, uniforms[2 * b])", "drawn(running.data(), blocks, 0.5)", "choose"),
]
"""Faults that a wrong compiler might put into a kernel, one of each kind."""
WRONG_TOO = [
    ("given.dk) + (first + i) * given.k_stride", "given.dk) + (first + i) * given.K * D", "attend_segments"),
    ("factors[x] = 1 / softmax", "factors[x] = 1.01f / softmax", "attend_rows"),
    ("store(score + c, load(score + c) / found.sum)", "store(score + c, load(score + c))", "attend_segments"),
    ("mean = sum(weighted) * share;", "mean = 0;", r"attend_segments \(queries\)"),
    ("dkeys_SD, D, true)", "dkeys_SD, D, false)", r"attend_segments \(keys\)"),
    ("dvalues_SE, E, true)", "dvalues_SE, E, false)", r"attend_segments \(values\)"),
    ("Backward && end - trunk > 1", "false", "attend_segments"),
    ("- float(std::log(total))", "- float(std::log(total + 0.1))", "choose"),
]


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(("right", "wrong", "name"), few([*WRONG, *WRONG_TOO], WRONG[0]))
def test_kernels_that_compute_something_else_are_not_used(right, wrong, name, tmp_path, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path))
    monkeypatch.setattr(compiling, "FLAGS", ("-O0", *compiling.FLAGS[1:]))  # compiles in a quarter of the time
    text = SOURCE.read_text(encoding="utf-8")
    assert text.count(right) == 1
    source = tmp_path / "kernels.cpp"
    source.write_text(text.replace(right, wrong), encoding="utf-8")
    made = Kernels(compiled(source, find_compiler()))
    with pytest.raises(Unavailable, match=rf"{name}.* differs from its formula"):
        check(made)


@needs_compiler
def test_the_check_does_not_depend_on_the_default_dtype(found):
    torch.set_default_dtype(torch.float64)
    try:
        check(found)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [("torch", "POSTTRAIN_KERNELS = torch"), ("off", "POSTTRAIN_KERNELS = off, which is none of compiled, torch")],
)
def test_kernels_can_be_switched_off(asked, reason, monkeypatch):
    monkeypatch.setenv(SWITCH, asked)
    # with a cache of its own: the next test would make the kernels anew, which takes seconds
    monkeypatch.setattr(module, "found", cache(module.found.__wrapped__))
    assert kernels() is None
    assert (why_none(), made_by()) == (reason, "")


def test_a_file_that_is_no_library_is_refused(tmp_path: Path):
    (tmp_path / "kernels.so").write_text("not one")
    with pytest.raises(Unavailable, match="cannot be loaded"):
        Kernels(tmp_path / "kernels.so")


@needs_compiler
def test_a_weight_of_another_width_is_refused(found):
    with pytest.raises(AssertionError):
        found.rms_norm(torch.randn(4, 32), torch.ones(64), 1e-6)


@needs_compiler
def test_a_large_gate_beside_a_small_one_does_not_overflow(found):
    gate_up = torch.full((1, 32), -50.0)
    gate_up[:, 16:] = 2e37
    expected = F.silu(gate_up[:, :16].double()) * gate_up[:, 16:].double()
    torch.testing.assert_close(found.silu_gate(gate_up).double(), expected, rtol=1e-5, atol=0.0)
