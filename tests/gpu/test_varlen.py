"""Attention of packed rows by a kernel for sequences equals attention by grids, for any shared prefixes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import examples
from tests.gpu import plain_varlen
from tests.models.tiny_architectures import CONFIGS
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from posttrain.gpu.varlen import Sequences, attend
from posttrain.models import acceleration
from posttrain.models import forward_path as forward_paths
from posttrain.models.forward import token_logprobs
from posttrain.models.forward_path import forward_path
from posttrain.models.packing import Segment
from posttrain.types import Tokens

H, K, D = 4, 2, 8


@st.composite
def packings(draw) -> list[Segment]:
    """Trunks, then the branches of each: lengths of a few tokens, prefixes of up to the whole trunk."""
    trunks = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    segments, start = [], 0
    for length in trunks:
        segments.append(Segment(start, length))
        start += length
    for trunk in list(segments):
        prefix = draw(st.integers(0, trunk.length))
        for length in draw(st.lists(st.integers(1, 5), max_size=3)) if prefix else ():
            segments.append(Segment(start, length, trunk.start, prefix))
            start += length
    return segments


def one_by_one(segments: list[Segment], query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Each token alone: softmax over the keys that it sees."""
    rows = []
    for start, length, prefix_start, prefix_length in segments:
        for t in range(length):
            seen = [*range(prefix_start, prefix_start + prefix_length), *range(start, start + t + 1)]
            for head in range(H):
                scores = key[seen, head // (H // K)] @ query[start + t, head] * D**-0.5
                rows.append(scores.softmax(dim=0) @ value[seen, head // (H // K)])
    return torch.stack(rows).view(-1, H, D)


@examples(15, 40)
@given(packings(), st.integers(0, 2**31))
def test_it_is_attention_to_the_prefix_and_to_what_came_before(segments, seed):
    torch.manual_seed(seed)
    tokens = sum(segment.length for segment in segments)
    given_ = [torch.randn(tokens, heads, D, dtype=torch.float64, requires_grad=True) for heads in (H, K, K)]
    sequences = Sequences.of(segments, torch.device("cpu"))
    actual = attend(
        sequences, plain_varlen.varlen, nn.Module(), given_[0], given_[1], given_[2], {}, dtypes=plain_varlen.WIDE
    )
    assert actual is not None
    weights = torch.randn_like(actual)
    expected = one_by_one(segments, given_[0], given_[1], given_[2])
    torch.testing.assert_close(actual, expected)
    gradients = (torch.autograd.grad((x * weights).sum(), given_) for x in (actual, expected))
    for found, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_prefix_is_gathered_once_for_each_segment_that_sees_it():
    sequences = Sequences.of([Segment(0, 4), Segment(4, 2, 0, 3), Segment(6, 1, 0, 3)], torch.device("cpu"))
    assert sequences.query_ends.tolist() == [0, 4, 6, 7]
    assert sequences.key_ends.tolist() == [0, 4, 9, 13]
    assert sequences.gathered_M is not None
    assert sequences.gathered_M.tolist() == [0, 1, 2, 3, 0, 1, 2, 4, 5, 0, 1, 2, 6]
    assert (sequences.most_queries, sequences.most_keys) == (4, 5)


def test_without_prefixes_nothing_is_gathered():
    assert Sequences.of([Segment(0, 4), Segment(4, 2)], torch.device("cpu")).gathered_M is None


def test_the_gradient_of_a_prefix_is_summed_in_float32():
    """256 branches contribute 1 each and one contributes 256: in bfloat16, which has 8 bits, 256 + 1 is 256."""
    segments = [Segment(0, 1), *(Segment(1 + n, 1, 0, 1) for n in range(257))]
    sequences = Sequences.of(segments, torch.device("cpu"))
    value = torch.zeros(258, 1, 8, dtype=torch.bfloat16, requires_grad=True)

    def sums(query: Tensor, key: Tensor, value: Tensor, *args: object, **kwargs: object) -> Tensor:
        return value * torch.where(torch.arange(len(value)) == 1, 256.0, 1.0).bfloat16()[:, None, None]

    seen = attend(sequences, sums, nn.Module(), value, value.detach(), value, {})
    assert seen is not None
    seen.sum().backward()
    assert value.grad is not None
    assert value.grad[0, 0, 0] == 512 + 2  # 1 of the trunk, 256 and 256 times 1 of the branches: 513, rounded to even


@pytest.mark.parametrize(
    "setting",
    [{"softcap": 30.0}, {"s_aux": torch.zeros(H)}, {"dropout": 0.1}, {"sliding_window": 4}, {"is_causal": False}],
)
def test_attention_that_is_more_than_causal_is_left_to_grids(setting):
    x = torch.zeros(3, H, D)
    sequences = Sequences.of([Segment(0, 3)], torch.device("cpu"))
    assert attend(sequences, plain_varlen.varlen, nn.Module(), x, x, x, setting, dtypes=plain_varlen.WIDE) is None


@pytest.mark.parametrize(("width", "dtype"), [(12, torch.bfloat16), (264, torch.bfloat16), (8, torch.float32)], ids=str)
def test_what_the_kernel_does_not_take_is_left_to_grids(width, dtype):
    x = torch.zeros(3, H, width, dtype=dtype)
    assert attend(Sequences.of([Segment(0, 3)], x.device), plain_varlen.varlen, nn.Module(), x, x, x, {}) is None


# --- in whole models --------------------------------------------------------------------------------------------------


@pytest.fixture
def by_sequences() -> Iterator[None]:
    acceleration.register(plain_varlen.__name__)
    plain_varlen.calls.clear()
    yield
    acceleration.register("posttrain.cpu")


ROWS = Tokens(
    input_ids_BT=torch.tensor([[*range(3, 23), *range(n, n + 4)] for n in (30, 40, 50)] + [[*range(5, 29)]]),
    lengths_B=torch.tensor([24, 22, 23, 20]),
)
"""Three rows with a common prefix, and one without."""


@pytest.mark.parametrize(
    ("name", "takes_it"),
    [
        ("llama, grouped heads", True),
        ("qwen3, tied", True),
        ("mistral, sliding window", False),
        ("gpt-oss, sinks", False),
    ],
)
def test_a_model_gives_the_same_log_probabilities_and_gradients(name, takes_it, by_sequences):
    torch.manual_seed(0)
    config = CONFIGS[name]()
    config.head_dim = 8
    model = AutoModelForCausalLM.from_config(config).double().eval()
    places_T = torch.arange(24)
    mask_BT = (places_T >= 18) & (places_T < ROWS.lengths_B[:, None])

    def computed() -> tuple[Tensor, list[Tensor]]:
        logprobs_BT = token_logprobs(model, ROWS, mask_BT, temperature=1.0).logprobs_BT
        weights_BT = torch.linspace(0.5, 1.5, logprobs_BT.numel(), dtype=torch.float64).view(logprobs_BT.shape)
        loss = (logprobs_BT * weights_BT).sum()
        return logprobs_BT.detach(), list(torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True))

    assert forward_path(model).shares_prefixes
    by_kernel = computed()
    assert bool(plain_varlen.calls) == takes_it
    acceleration.register(None)
    by_grids = computed()
    torch.testing.assert_close(by_kernel[0], by_grids[0])
    for actual, expected in zip(by_kernel[1], by_grids[1], strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-9)


# --- whether it is used -----------------------------------------------------------------------------------------------


def aligned_at_the_beginning(query: Tensor, key: Tensor, value: Tensor, *ends: Any, **settings: Any) -> Tensor:
    """A kernel whose query i sees the first i + 1 keys, which is right only for as many keys as queries."""
    query_ends, key_ends, most_queries, _ = ends
    lengths_S = query_ends.diff()
    kept = torch.cat([torch.arange(k, k + n) for k, n in zip(key_ends.tolist(), lengths_S.tolist(), strict=False)])
    return plain_varlen.varlen(
        query, key[kept], value[kept], query_ends, query_ends, most_queries, most_queries, **settings
    )


def not_a_number(*args: Any, **settings: Any) -> Tensor:
    return plain_varlen.varlen(*args, **settings) * torch.nan


class _NoBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise RuntimeError("the backward pass wants another card")


class _NaNBackward(_NoBackward):
    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * torch.nan


def no_backward(*args: Any, **settings: Any) -> Tensor:
    return _NoBackward.apply(plain_varlen.varlen(*args, **settings))  # pyright: ignore[reportReturnType]


def bad_backward(*args: Any, **settings: Any) -> Tensor:
    return _NaNBackward.apply(plain_varlen.varlen(*args, **settings))  # pyright: ignore[reportReturnType]


def no_kernel(*args: Any, **settings: Any) -> Tensor:
    raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")


@pytest.mark.parametrize(
    ("kernel", "accelerated", "why"),
    [
        (plain_varlen.varlen, True, ""),
        (aligned_at_the_beginning, False, "it is off by"),
        (no_kernel, False, "RuntimeError: FlashAttention only supports Ampere GPUs or newer."),
        (not_a_number, False, "it is off by nan"),
        (no_backward, False, "RuntimeError: the backward pass wants another card"),
        (bad_backward, False, "its gradient is not finite"),
    ],
    ids=["as promised", "another alignment", "no kernel", "NaN", "no backward pass", "NaN as gradient"],
)
def test_a_kernel_is_used_where_it_is_as_near_to_float32_as_grids_are(
    kernel, accelerated, why, by_sequences, monkeypatch
):
    """The test makes the check of a GPU on a CPU, for kernels that keep their contract there and kernels that do
    not."""
    monkeypatch.setattr(
        plain_varlen, "row_attention", lambda segments, device: partial(attend, Sequences.of(segments, device), kernel)
    )
    config = CONFIGS["llama, grouped heads"]()
    config.head_dim = 8
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    path = forward_path(model)
    tokens = forward_paths._probe_rows(model)
    with torch.no_grad():
        _, _, expected_BTD = forward_paths._find_body(model, tokens)
        probe = forward_paths._Probe(model, path.body, tokens, expected_BTD)
        manner, reasons = forward_paths._on_a_gpu(probe, share=True)
    assert (manner.plain, manner.accelerated) == (True, accelerated)
    assert why in "".join(reasons)
    assert bool(reasons) != accelerated
