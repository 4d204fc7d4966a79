"""Chunked log-probabilities equal plain `log_softmax`: values, gradients, entropy, precision and memory."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from tests.catalogue import catalogue, few
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from posttrain.functional import linear_logprobs
from posttrain.functional.logprobs import chunked_head_logprobs, chunked_logprobs

N, D, V = 11, 5, 13


def plain_logprobs(hidden_ND, weight_VD, bias_V, targets_N, temperature=1.0) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities and entropies by definition, from whole logits."""
    log_p_NV = (F.linear(hidden_ND, weight_VD, bias_V) / temperature).log_softmax(dim=-1)
    return log_p_NV.gather(1, targets_N[:, None])[:, 0], -(log_p_NV.exp() * log_p_NV).sum(dim=-1)


def inputs(dtype=torch.float64, with_bias=True) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden_ND = torch.randn(N, D, generator=generator, dtype=torch.float64).to(dtype)
    weight_VD = torch.randn(V, D, generator=generator, dtype=torch.float64).to(dtype)
    bias_V = torch.randn(V, generator=generator, dtype=torch.float64).to(dtype)
    targets_N = torch.randint(V, (N,), generator=generator)
    return hidden_ND, weight_VD, bias_V if with_bias else None, targets_N


def test_entropy_of_the_reference_is_reproduced():
    """The logits z = [2, 1, 0, -1] have entropy 0.947536964."""
    z_V = torch.tensor([2.0, 1.0, 0.0, -1.0], dtype=torch.float64)
    target_N = torch.tensor([0])
    logprobs_N, entropy_N = chunked_logprobs(
        torch.ones(1, 1, dtype=torch.float64), z_V[:, None], None, target_N, with_entropy=True
    )
    assert entropy_N is not None
    assert entropy_N.item() == pytest.approx(0.947536964, abs=1e-9)
    assert logprobs_N.item() == pytest.approx(2 - math.log(sum(math.exp(z) for z in z_V.tolist())), rel=1e-12)


@catalogue("chunk_tokens", [1, 4, 11, 1024])
@catalogue("temperature", [1.0, 0.6])
@catalogue("with_bias", [True, False])
def test_values_and_gradients_equal_the_plain_definition_in_any_chunking(chunk_tokens, temperature, with_bias):
    *parameters, targets_N = inputs(with_bias=with_bias)
    leaves = [p for p in parameters if p is not None]
    [p.requires_grad_() for p in leaves]
    g_N, e_N = torch.linspace(-1, 2, N, dtype=torch.float64), torch.linspace(0.5, -0.7, N, dtype=torch.float64)

    expected = plain_logprobs(*parameters, targets_N, temperature)
    expected_grads = torch.autograd.grad((g_N * expected[0] + e_N * expected[1]).sum(), leaves)
    actual = chunked_logprobs(
        *parameters, targets_N, temperature=temperature, chunk_tokens=chunk_tokens, with_entropy=True
    )
    actual_grads = torch.autograd.grad((g_N * actual[0] + e_N * actual[1]).sum(), leaves)

    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(actual_grads, expected_grads, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("with_entropy", few([True, False], True))
def test_gradients_agree_with_finite_differences(with_entropy):
    hidden_ND, weight_VD, bias_V, targets_N = inputs()
    assert bias_V is not None

    def function(hidden, weight, bias):
        outputs = chunked_logprobs(
            hidden, weight, bias, targets_N, temperature=0.8, chunk_tokens=4, with_entropy=with_entropy
        )
        return outputs if with_entropy else outputs[0]

    leaves = hidden_ND.requires_grad_(), weight_VD.requires_grad_(), bias_V.requires_grad_()
    assert torch.autograd.gradcheck(function, leaves, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("trained", ["hidden", "weight", "bias"])
def test_only_what_is_trained_gets_a_gradient(trained):
    hidden_ND, weight_VD, bias_V, targets_N = inputs()
    leaves = {"hidden": hidden_ND, "weight": weight_VD, "bias": bias_V}
    leaves[trained].requires_grad_()
    logprobs_N, _ = chunked_logprobs(hidden_ND, weight_VD, bias_V, targets_N, chunk_tokens=3)
    logprobs_N.sum().backward()
    assert {name for name, leaf in leaves.items() if leaf.grad is not None} == {trained}


def test_a_frozen_head_and_no_grad_build_no_graph():
    hidden_ND, weight_VD, bias_V, targets_N = inputs()
    assert not chunked_logprobs(hidden_ND, weight_VD, bias_V, targets_N)[0].requires_grad
    with torch.no_grad():
        assert not chunked_logprobs(hidden_ND.requires_grad_(), weight_VD, bias_V, targets_N)[0].requires_grad


def test_the_softmax_of_bfloat16_inputs_is_float32():
    """Only the product is rounded. Compared with float64 on the same rounded inputs, the error is that of one logit."""
    hidden_ND, weight_VD, bias_V, targets_N = inputs(torch.bfloat16)
    logprobs_N, entropy_N = chunked_logprobs(hidden_ND, weight_VD, bias_V, targets_N, with_entropy=True)
    assert entropy_N is not None
    assert logprobs_N.dtype == entropy_N.dtype == torch.float32
    exact_NV = F.linear(hidden_ND.double(), weight_VD.double(), bias_V.double())  # type: ignore[union-attr]
    rounding = 2**-8 * exact_NV.abs().max().item()
    expected_N = exact_NV.log_softmax(dim=-1).gather(1, targets_N[:, None])[:, 0]
    torch.testing.assert_close(logprobs_N.double(), expected_N, rtol=0, atol=2 * rounding)
    logits_NV = F.linear(hidden_ND, weight_VD, bias_V).float()
    torch.testing.assert_close(logprobs_N, logits_NV.log_softmax(dim=-1).gather(1, targets_N[:, None])[:, 0])


def test_float32_errors_stay_at_float32_rounding_for_a_large_vocabulary():
    generator = torch.Generator().manual_seed(1)
    hidden_ND = torch.randn(7, 16, generator=generator)
    weight_VD = torch.randn(30_000, 16, generator=generator)
    targets_N = torch.randint(30_000, (7,), generator=generator)
    actual = chunked_logprobs(hidden_ND, weight_VD, None, targets_N, with_entropy=True)
    expected = plain_logprobs(hidden_ND.double(), weight_VD.double(), None, targets_N)
    torch.testing.assert_close([x.double() for x in actual if x is not None], list(expected), rtol=1e-5, atol=1e-5)


def test_under_autocast_the_product_runs_in_bfloat16_and_gradients_are_float32():
    hidden_ND, weight_VD, bias_V, targets_N = inputs(torch.float32)
    hidden_ND.requires_grad_()
    weight_VD.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logprobs_N, _ = chunked_logprobs(hidden_ND, weight_VD, bias_V, targets_N, chunk_tokens=4)
        logits_NV = F.linear(hidden_ND, weight_VD, bias_V)
    assert logits_NV.dtype == torch.bfloat16
    torch.testing.assert_close(logprobs_N, logits_NV.float().log_softmax(-1).gather(1, targets_N[:, None])[:, 0])
    logprobs_N.sum().backward()
    assert hidden_ND.grad is not None
    assert weight_VD.grad is not None
    assert hidden_ND.grad.dtype == weight_VD.grad.dtype == torch.float32

    exact = [p.detach().double().requires_grad_() for p in (hidden_ND, weight_VD)]
    plain_logprobs(*exact, bias_V.double(), targets_N)[0].sum().backward()  # type: ignore[union-attr]
    for narrow, wide in zip((hidden_ND, weight_VD), exact, strict=True):
        error = (narrow.grad.double() - wide.grad).norm() / wide.grad.norm()  # type: ignore[union-attr]
        assert error < 0.02


def test_a_constant_added_to_all_logits_changes_nothing():
    hidden_ND, weight_VD, bias_V, targets_N = inputs()
    assert bias_V is not None
    before = chunked_logprobs(hidden_ND, weight_VD, bias_V, targets_N, with_entropy=True)
    after = chunked_logprobs(hidden_ND, weight_VD, bias_V + 1000.0, targets_N, with_entropy=True)
    torch.testing.assert_close(before, after, rtol=1e-9, atol=1e-9)


def test_a_token_that_is_ruled_out_leaves_entropy_and_gradient_finite():
    hidden_ND, weight_VD, bias_V, _ = inputs()
    assert bias_V is not None
    ruled_out_V = bias_V.clone()
    ruled_out_V[3] = -math.inf
    targets_N = torch.zeros(N, dtype=torch.long)
    kept_V = torch.arange(V) != 3
    weight_VD.requires_grad_()
    actual = chunked_logprobs(hidden_ND, weight_VD, ruled_out_V, targets_N, with_entropy=True)
    expected = plain_logprobs(hidden_ND, weight_VD[kept_V], bias_V[kept_V], targets_N)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    (gradient,) = torch.autograd.grad(actual[0].sum() + 7 * actual[1].sum(), weight_VD)  # type: ignore[union-attr]
    assert gradient.isfinite().all()


WIDE_N, WIDE_V = 1030, 4000
"""A size with two chunks of 600 positions and three tiles of the vocabulary."""


def wide_inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    hidden_ND, weight_VD, bias_V = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((WIDE_N, 3), (WIDE_V, 3), (WIDE_V,))
    )
    return hidden_ND, weight_VD, bias_V, torch.randint(WIDE_V, (WIDE_N,), generator=generator)


@pytest.mark.parametrize("largest", few([0, WIDE_V - 1], WIDE_V - 1))
def test_a_vocabulary_of_several_tiles_gives_the_same_numbers(largest):
    """The largest logit is in the first tile, above all others there, or in the last."""
    *leaves, targets_N = wide_inputs()
    leaves[2][largest] += 30.0
    [leaf.requires_grad_() for leaf in leaves]
    top1_N = torch.empty(WIDE_N, dtype=torch.bool)
    g_N, e_N = torch.linspace(-1, 2, WIDE_N).double(), torch.linspace(0.5, -0.7, WIDE_N).double()
    expected = plain_logprobs(*leaves, targets_N, 0.7)
    actual = chunked_logprobs(*leaves, targets_N, temperature=0.7, chunk_tokens=600, with_entropy=True, top1_N=top1_N)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        torch.autograd.grad((g_N * actual[0] + e_N * actual[1]).sum(), leaves),  # type: ignore[operator]
        torch.autograd.grad((g_N * expected[0] + e_N * expected[1]).sum(), leaves),
        rtol=1e-10,
        atol=1e-12,
    )
    assert torch.equal(top1_N, F.linear(*leaves).argmax(dim=-1) == targets_N)


@pytest.mark.parametrize("dtype", few([torch.float32, torch.bfloat16], torch.bfloat16))
def test_how_many_logits_are_kept_for_the_backward_pass_changes_no_bit(dtype, monkeypatch):
    *leaves, targets_N = wide_inputs()
    leaves = [leaf.to(dtype).requires_grad_() for leaf in leaves]

    def gradients(kept_bytes: int) -> tuple[list[int], tuple[Tensor, ...]]:
        monkeypatch.setattr(linear_logprobs, "KEPT_BYTES", kept_bytes)
        kept: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.nbytes) or x, lambda x: x):
            outputs = chunked_logprobs(*leaves, targets_N, temperature=0.7, chunk_tokens=600, with_entropy=True)
        return kept, torch.autograd.grad(outputs[0].sum() - 2 * outputs[1].sum(), leaves)  # type: ignore[union-attr]

    all_kept, expected = gradients(2**28)
    assert sum(all_kept) > WIDE_N * WIDE_V * dtype.itemsize
    for room in (0, 5_000_000):
        kept, actual = gradients(room)
        assert sum(kept) <= room + 200_000
        assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


@pytest.mark.parametrize("ruled_out", [slice(0, 2500), slice(1500, None)])
def test_a_tile_in_which_every_token_is_ruled_out_adds_nothing(ruled_out):
    hidden_ND, weight_VD, bias_V, _ = wide_inputs()
    bias_V[ruled_out] = -math.inf
    kept_V = bias_V.isfinite()
    targets_N = torch.full((WIDE_N,), int(kept_V.nonzero()[7]))
    weight_VD.requires_grad_()
    actual = chunked_logprobs(hidden_ND, weight_VD, bias_V, targets_N, chunk_tokens=600, with_entropy=True)
    expected = plain_logprobs(hidden_ND, weight_VD[kept_V], bias_V[kept_V], torch.full((WIDE_N,), 7))
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    (gradient_VD,) = torch.autograd.grad(actual[0].sum() + 7 * actual[1].sum(), weight_VD)  # type: ignore[union-attr]
    assert gradient_VD.isfinite().all()
    assert not gradient_VD[~kept_V].any()


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest tensor that is created inside."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        sizes = [x.numel() for x in (made if isinstance(made, tuple) else (made,)) if isinstance(x, Tensor)]
        self.largest = max([self.largest, *sizes])
        return made


def test_no_logits_of_all_tokens_of_a_chunk_are_ever_made():
    """A tile has at most a million logits, or 1,024 columns if a chunk is long."""
    hidden_ND, weight_VD, _, targets_N = wide_inputs()
    with LargestTensor() as watch:
        chunked_logprobs(hidden_ND.requires_grad_(), weight_VD, None, targets_N, chunk_tokens=1030)[0].sum().backward()
    assert watch.largest == 1030 * 1024


def test_no_tensor_of_all_logits_is_ever_made():
    """Neither pass allocates more than one chunk of logits."""
    hidden_ND = torch.randn(64, 4, requires_grad=True)
    weight_VD = torch.randn(50, 4, requires_grad=True)
    targets_N = torch.zeros(64, dtype=torch.long)
    with LargestTensor() as watch:
        logprobs_N, entropy_N = chunked_logprobs(
            hidden_ND, weight_VD, None, targets_N, chunk_tokens=8, with_entropy=True
        )
        (logprobs_N.sum() + entropy_N.sum()).backward()  # type: ignore[union-attr]
    assert watch.largest == 8 * 50


def test_log_probabilities_and_entropy_may_be_differentiated_apart():
    hidden_ND, weight_VD, bias_V, targets_N = inputs()
    hidden_ND.requires_grad_()
    logprobs_N, entropy_N = chunked_logprobs(hidden_ND, weight_VD, bias_V, targets_N, with_entropy=True)
    (reported,) = torch.autograd.grad(logprobs_N.sum(), hidden_ND, retain_graph=True)
    (without,) = torch.autograd.grad(chunked_logprobs(hidden_ND, weight_VD, bias_V, targets_N)[0].sum(), hidden_ND)
    assert torch.equal(reported, without)
    (only_entropy,) = torch.autograd.grad(entropy_N.sum(), hidden_ND)  # type: ignore[union-attr]
    (expected,) = torch.autograd.grad(plain_logprobs(hidden_ND, weight_VD, bias_V, targets_N)[1].sum(), hidden_ND)
    torch.testing.assert_close(only_entropy, expected)


@pytest.mark.parametrize("function", ["linear", "generic"])
def test_no_position_at_all_gives_nothing_and_a_gradient_of_zero(function):
    hidden_ND = torch.zeros(0, D, requires_grad=True)
    weight_VD = torch.randn(V, D)
    targets_N = torch.zeros(0, dtype=torch.long)
    if function == "linear":
        logprobs_N, entropy_N = chunked_logprobs(hidden_ND, weight_VD, None, targets_N, with_entropy=True)
    else:
        logprobs_N, entropy_N = chunked_head_logprobs(
            lambda h: h @ weight_VD.T, hidden_ND, targets_N, with_entropy=True
        )
    assert entropy_N is not None
    assert logprobs_N.shape == entropy_N.shape == (0,)
    logprobs_N.sum().backward()
    assert hidden_ND.grad is not None


@pytest.mark.parametrize("chunk_tokens", [3, 1024])
def test_a_soft_capped_head_goes_through_the_generic_path_with_the_same_gradients(chunk_tokens):
    hidden_ND, weight_VD, bias_V, targets_N = inputs()
    linear = nn.Linear(D, V, dtype=torch.float64)
    linear.weight.data, linear.bias.data = weight_VD, bias_V  # type: ignore[assignment]
    hidden_ND.requires_grad_()

    def capped(hidden_nD: Tensor) -> Tensor:
        return 2.0 * torch.tanh(linear(hidden_nD) / 2.0)

    leaves = [hidden_ND, linear.weight, linear.bias]
    log_p_NV = (capped(hidden_ND) / 0.7).log_softmax(dim=-1)
    expected = log_p_NV.gather(1, targets_N[:, None])[:, 0], -(log_p_NV.exp() * log_p_NV).sum(dim=-1)
    actual = chunked_head_logprobs(
        capped, hidden_ND, targets_N, temperature=0.7, chunk_tokens=chunk_tokens, with_entropy=True
    )
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        torch.autograd.grad(actual[0].sum() - 2 * actual[1].sum(), leaves),  # type: ignore[union-attr]
        torch.autograd.grad(expected[0].sum() - 2 * expected[1].sum(), leaves),
        rtol=1e-11,
        atol=1e-12,
    )


def test_the_generic_path_keeps_no_logits_for_the_backward_pass():
    hidden_ND = torch.randn(32, 4, requires_grad=True)
    weight_VD = torch.randn(50, 4, requires_grad=True)
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        chunked_head_logprobs(lambda h: h @ weight_VD.T, hidden_ND, torch.zeros(32, dtype=torch.long), chunk_tokens=8)
    assert max(kept, default=0) <= weight_VD.numel()


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_a_temperature_that_cannot_divide_logits_is_refused(temperature):
    hidden_ND, weight_VD, bias_V, targets_N = inputs()
    with pytest.raises(ValueError, match="must be greater than 0"):
        chunked_logprobs(hidden_ND, weight_VD, bias_V, targets_N, temperature=temperature)


def test_an_empty_chunk_is_refused():
    with pytest.raises(ValueError, match="at least one position"):
        chunked_logprobs(*inputs(), chunk_tokens=0)


@pytest.mark.parametrize("head", ["linear", "any"])
@pytest.mark.parametrize("grad", [False, True])
def test_the_flag_says_whether_the_target_is_the_most_likely_token_and_changes_nothing_else(head, grad):
    hidden_ND, weight_VD, bias_V, targets_N = inputs()
    logits_NV = hidden_ND @ weight_VD.T + bias_V
    targets_N = torch.where(torch.arange(len(targets_N)) % 2 == 0, logits_NV.argmax(dim=-1), targets_N)
    hidden_ND.requires_grad_(grad)
    top1_N = torch.empty(len(targets_N), dtype=torch.bool)

    def score(**asked):
        if head == "linear":
            return chunked_logprobs(hidden_ND, weight_VD, bias_V, targets_N, chunk_tokens=3, **asked)[0]
        return chunked_head_logprobs(lambda h: h @ weight_VD.T + bias_V, hidden_ND, targets_N, chunk_tokens=3, **asked)[
            0
        ]

    logprobs_N = score(top1_N=top1_N)
    assert torch.equal(top1_N, logits_NV.argmax(dim=-1) == targets_N)
    assert torch.equal(logprobs_N, score())
    if grad:
        with_flag, without = (torch.autograd.grad(x_N.sum(), hidden_ND)[0] for x_N in (logprobs_N, score()))
        assert torch.equal(with_flag, without)


def test_one_of_several_most_likely_tokens_is_one_of_them():
    top1_N = torch.empty(2, dtype=torch.bool)
    chunked_logprobs(torch.ones(2, 1), torch.tensor([[1.0], [1.0], [0.0]]), None, torch.tensor([1, 2]), top1_N=top1_N)
    assert top1_N.tolist() == [True, False]
