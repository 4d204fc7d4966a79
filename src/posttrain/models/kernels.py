"""Compiled kernels for a CPU: what decoding takes 4 to 17 calls of PyTorch for, in one; attention (kernels.cpp).

A pass over a few rows of a small model takes as long as the calls that it makes, and attention of single queries by
batched products of PyTorch reaches a tenth of what the processor can do. Where the machine has a C++ compiler
(`CXX`, or g++), the kernels are compiled once for its processor (compiled.py). Before anything is computed with them,
each is compared with the formula that it stands for. Where there is no compiler, or POSTTRAIN_KERNELS=torch, the same
is computed in operations of PyTorch; which of the two a run began with is saved with it (compute.py).

L tokens, n rows, P prompts, E width of the model, I of a gated MLP or expert, X experts, k of them per row, H query
heads, K key-value heads, N = H + 2 K, D width of a head, C columns of keys and values. In training, values have a width
E of their own.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posttrain.models.compiled import Unavailable, compiled, find_compiler

SOURCE = Path(__file__).with_suffix(".cpp")
SWITCH = "POSTTRAIN_KERNELS"
SETTINGS = ("compiled", "torch")
LANES = 16
"""Numbers that the kernels take at a time: widths are multiples of it, those of heads of twice as many."""
PANEL = 64
"""Outputs of a linear layer whose weights are stored together."""
CHUNK_ROWS = 8
"""Rows of one prompt that are computed together: its keys and values are read once for all of them."""
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Relative to the largest number, from the formula in float32."""
Stored = tuple[Tensor, Tensor]
"""Keys `[slots, K, D, C]` and values `[slots, K, C, D]`."""
COPIED_WEIGHTS = 2**21
"""Weights of a layer up to which it is copied, in panels or joined to others, whenever somebody begins to decode. The
call of a larger product costs little beside what it reads."""
_HALF = {torch.float32: False, torch.bfloat16: True}


class _Attention(ctypes.Structure):
    """The struct of the same name in kernels.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("qkv", "keys_p", "values_p", "keys_s", "values_s", "mask", "out")),
        *((name, ctypes.c_void_p) for name in ("prompts", "lengths", "ages", "order", "chunks")),
        *((name, ctypes.c_int64) for name in ("num_chunks", "H", "K", "D")),
        *((name, ctypes.c_int64) for name in ("columns_p", "columns_s", "mask_p", "mask_s")),
        ("scaling", ctypes.c_float),
        ("threads", ctypes.c_int32),
    ]


class _Segments(ctypes.Structure):
    """The struct of the same name in kernels.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "out", "logsums", "gradient", "dq", "dk", "dv")),
        *((name, ctypes.c_void_p) for name in ("segments", "families")),
        *((name, ctypes.c_int64) for name in ("num_families", "H", "K", "D", "E")),
        ("scaling", ctypes.c_float),
        ("threads", ctypes.c_int32),
    ]


class _Experts(ctypes.Structure):
    """The struct of the same name in kernels.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "gate_up", "down", "chosen", "shares", "out")),
        *((name, ctypes.c_int64) for name in ("n", "C", "X", "E", "I")),
        ("threads", ctypes.c_int32),
    ]


@dataclass(frozen=True)
class Families:
    """Segments of packed rows. Those of a family see a prefix of its first one before their own tokens."""

    segments: Tensor
    """`[segments, 3]` start, length and length of the prefix; the first of a family has none."""
    starts: Tensor
    """`[families + 1]`: where families begin in `segments`."""

    @property
    def number(self) -> int:
        return len(self.starts) - 1


@dataclass(frozen=True)
class RowPlaces:
    """Where each of n rows is, for as long as the same rows are in flight."""

    prompts_n: Tensor
    """The slot of the prompt that a row began with."""
    lengths_n: Tensor
    """Tokens of that prompt."""
    order_n: Tensor
    """The rows, those of a prompt beside each other."""
    chunks: Tensor
    """`[number + 1]`: where in `order_n` chunks begin, of rows of one prompt."""

    @staticmethod
    def of(prompt_n: Sequence[int], lengths: Sequence[int]) -> RowPlaces:
        """`lengths`: of every prompt."""
        prompts, lengths_P = np.array(prompt_n, dtype=np.int64), np.array(lengths, dtype=np.int64)
        order = np.argsort(prompts, kind="stable")
        first = np.flatnonzero(np.diff(prompts[order], prepend=-1))
        ends = np.append(first[1:], len(order))
        chunks = [place for a, b in zip(first, ends, strict=True) for place in range(a, b, CHUNK_ROWS)]
        arrays = (prompts, lengths_P[prompts], order, np.array([*chunks, len(order)]))
        return RowPlaces(*map(torch.from_numpy, arrays))


class Kernels:
    """The functions of a compiled library. All tensors are on the CPU, in float32 or all in bfloat16."""

    def __init__(self, library: Path) -> None:
        """Raises Unavailable for what cannot be loaded."""
        try:
            functions = ctypes.CDLL(str(library))
        except OSError as error:
            raise Unavailable(f"{library} cannot be loaded ({error})") from error
        half, pointer, size, number, threads = (
            ctypes.c_bool,
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_float,
            ctypes.c_int,
        )
        four, sizes = [pointer] * 4, [size] * 3
        self._linear = _function(functions, "linear", *four, *sizes, threads)
        self._attend_rows = _function(functions, "attend_rows", half, ctypes.POINTER(_Attention))
        self._attend_segments = _function(functions, "attend_segments", half, half, ctypes.POINTER(_Segments))
        two_kinds = half, half
        self._rms_norm = _function(functions, "rms_norm", *two_kinds, *four, size, size, number, threads)
        self._rms_norm_backward = _function(
            functions, "rms_norm_backward", *two_kinds, *four, pointer, pointer, size, size, threads
        )
        self._rotate = _function(functions, "rotate", half, pointer, pointer, pointer, size, *sizes, threads)
        self._silu_gate = _function(functions, "silu_gate", half, *four[:3], *sizes, threads)
        self._silu_gate_backward = _function(functions, "silu_gate_backward", half, *four, pointer, size, size, threads)
        self._experts = _function(functions, "experts", half, ctypes.POINTER(_Experts))
        self._choose = _function(functions, "choose", half, *four, size, size, number, threads)

    def linear(self, x: Tensor, panels: Tensor, bias_M: Tensor | None, outputs: int) -> Tensor:
        """`x @ weight.T + bias` in float32, for `x` of any leading shape, with the weight `in_panels`."""
        inputs = x.shape[-1]
        assert inputs > 0, "numbers to sum"
        assert outputs % LANES == 0, "whole registers of sums"
        assert panels.numel() == inputs * outputs, "a weight for each number of a row"
        assert x.dtype == panels.dtype == torch.float32, "other numbers are not what the kernel reads"
        x, out = x.contiguous(), x.new_empty(*x.shape[:-1], outputs)
        bias = None
        if bias_M is not None:
            assert (bias_M.dtype, bias_M.shape) == (torch.float32, (outputs,)), "a number for each sum"
            bias = bias_M.data_ptr()
        pointers = x.data_ptr(), panels.data_ptr(), bias, out.data_ptr()
        self._linear(*pointers, x.numel() // inputs, inputs, outputs, torch.get_num_threads())
        return out

    def attend_rows(
        self,
        qkv_nND: Tensor,
        places: RowPlaces,
        ages_n: Tensor,
        prompts: Stored,
        rows: Stored,
        scaling: float,
        mask_nC: Tensor | None,
        mask_columns: int,
    ) -> Tensor:
        """`[n, H D]`: attention of new tokens; their keys and values are first written to their rows, column `ages_n`.

        `qkv_nND`: rotated queries, rotated keys, values, N = H + 2 K; D is a multiple of 2 `LANES`. The mask is added
        to scores, `mask_columns` of prompts before those of rows; None where a row sees all of its prompt and itself.
        """
        num_rows, num_heads, width = qkv_nND.shape
        keys_p, values_p, keys_s, values_s = *prompts, *rows
        num_keys = keys_s.shape[1]
        qkv_nND = qkv_nND.contiguous()
        out_nHD = qkv_nND.new_empty(num_rows, (num_heads - 2 * num_keys) * width)
        mask = None if mask_nC is None else mask_nC.contiguous()
        tensors = (qkv_nND, keys_p, values_p, keys_s, values_s, mask, out_nHD)
        tensors += (places.prompts_n, places.lengths_n, ages_n, places.order_n, places.chunks)
        given = _Attention(
            *(None if x is None else x.data_ptr() for x in tensors),
            len(places.chunks) - 1,
            num_heads - 2 * num_keys,
            num_keys,
            width,
            keys_p.shape[-1],
            keys_s.shape[-1],
            mask_columns,
            0 if mask is None else mask.shape[-1] - mask_columns,
            scaling,
            torch.get_num_threads(),
        )
        self._attend_rows(_HALF[qkv_nND.dtype], given)
        return out_nHD

    def attend_segments(
        self, query_LHD: Tensor, key_LKD: Tensor, value_LKE: Tensor, of: Families, scaling: float
    ) -> tuple[Tensor, Tensor]:
        """`[L, H, E]` causal attention within segments, and `[L, H]` what its backward pass needs.

        All tensors are contiguous, every token is in one segment, D and E are multiples of `LANES`.
        """
        length, num_heads, _ = query_LHD.shape
        out_LHE = query_LHD.new_empty(length, num_heads, value_LKE.shape[-1])
        logsums_LH = query_LHD.new_empty(length, num_heads, dtype=torch.float32)
        forward = (query_LHD, key_LKD, value_LKE, out_LHE, logsums_LH, None, None, None, None)
        self._attend_segments(_HALF[query_LHD.dtype], False, _segments(forward, of, scaling))
        return out_LHE, logsums_LH

    def attend_segments_backward(
        self,
        gradient_LHE: Tensor,
        query_LHD: Tensor,
        key_LKD: Tensor,
        value_LKE: Tensor,
        logsums_LH: Tensor,
        of: Families,
        scaling: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of queries, keys and values, given that of the output."""
        given = (query_LHD, key_LKD, value_LKE)
        found = torch.empty_like(query_LHD), torch.empty_like(key_LKD), torch.empty_like(value_LKE)
        backward = (*given, None, logsums_LH, gradient_LHE.contiguous(), *found)
        self._attend_segments(_HALF[query_LHD.dtype], True, _segments(backward, of, scaling))
        return found

    def rms_norm(self, x: Tensor, weight_E: Tensor, epsilon: float) -> Tensor:
        """`x / sqrt(mean(x^2) + epsilon) * weight`; the weight is float32, E a multiple of `LANES`."""
        return self._normed(x, weight_E, epsilon, x.dtype, None)

    def rms_norm_kept(self, x: Tensor, weight_E: Tensor, epsilon: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The same in `dtype`, and of each row `1 / sqrt(mean(x^2) + epsilon)`, which its backward pass needs."""
        factors = x.new_empty(x.shape[:-1], dtype=torch.float32)
        return self._normed(x, weight_E, epsilon, dtype, factors), factors

    def _normed(
        self, x: Tensor, weight_E: Tensor, epsilon: float, dtype: torch.dtype, factors: Tensor | None
    ) -> Tensor:
        assert x.shape[-1] == len(weight_E), "a weight for each number"
        x = x.contiguous()
        out, width = torch.empty_like(x, dtype=dtype), len(weight_E)
        pointers = x.data_ptr(), weight_E.data_ptr(), out.data_ptr(), None if factors is None else factors.data_ptr()
        rows, threads = x.numel() // width, torch.get_num_threads()
        self._rms_norm(_HALF[x.dtype], _HALF[dtype], *pointers, rows, width, epsilon, threads)
        return out

    def rms_norm_backward(
        self, gradient: Tensor, x: Tensor, weight_E: Tensor, factors: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The gradients of `x`, which is contiguous, and of the weight; that of rows is added up in one order."""
        gradient, width = gradient.contiguous(), len(weight_E)
        found = torch.empty_like(x), torch.empty_like(weight_E)
        pointers = (tensor.data_ptr() for tensor in (gradient, x, weight_E, factors, *found))
        rows, threads = x.numel() // width, torch.get_num_threads()
        self._rms_norm_backward(_HALF[x.dtype], _HALF[gradient.dtype], *pointers, rows, width, threads)
        return found

    def rotate_(self, x_LND: Tensor, cos_L1D: Tensor, sin_L1D: Tensor) -> None:
        """`x cos + swap(x) sin`, in place, the sign of the swapped halves put into the sine; D as in `attend_rows`.

        Heads of a token lie side by side; what else there is of a token may lie behind them.
        """
        length, heads, width = x_LND.shape
        assert x_LND.stride()[1:] == (width, 1), "heads lie side by side"
        pointers = x_LND.data_ptr(), cos_L1D.data_ptr(), sin_L1D.data_ptr()
        self._rotate(_HALF[x_LND.dtype], *pointers, length, heads, width, x_LND.stride(0), torch.get_num_threads())

    def silu_gate(self, gate_up_LI: Tensor) -> Tensor:
        """`silu(gate) * up` of the two halves of the last dimension, each a multiple of `LANES`."""
        gate_up_LI = gate_up_LI.contiguous()
        return self._gated(*gate_up_LI.chunk(2, dim=-1), stride=gate_up_LI.shape[-1])

    def silu_gate_of(self, gate: Tensor, up: Tensor) -> Tensor:
        """The same of two tensors, both contiguous."""
        return self._gated(gate, up, stride=gate.shape[-1])

    def _gated(self, gate: Tensor, up: Tensor, stride: int) -> Tensor:
        width = gate.shape[-1]
        assert width % LANES == 0, "whole registers of numbers"
        assert (gate.shape, gate.dtype) == (up.shape, up.dtype), "a gate for each number"
        out = gate.new_empty(gate.shape)
        pointers = gate.data_ptr(), up.data_ptr(), out.data_ptr()
        self._silu_gate(_HALF[out.dtype], *pointers, out.numel() // width, width, stride, torch.get_num_threads())
        return out

    def silu_gate_backward(self, gradient: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of gate and up, both contiguous."""
        gradient, width = gradient.contiguous(), gate.shape[-1]
        found = torch.empty_like(gate), torch.empty_like(up)
        pointers = (tensor.data_ptr() for tensor in (gradient, gate, up, *found))
        rows, threads = gate.numel() // width, torch.get_num_threads()
        self._silu_gate_backward(_HALF[gate.dtype], *pointers, rows, width, threads)
        return found

    def experts(
        self, x_nE: Tensor, gate_up_XJE: Tensor, down_XEI: Tensor, chosen_nk: Tensor, shares_nk: Tensor
    ) -> Tensor:
        """`[n, E]`: `down(silu(gate x) * up x)` of each expert that a row chose, added up in the shares it has of them.

        J = 2 I, gates before ups; E and I are multiples of `LANES`. Choices are int64; one that is no number of an
        expert adds nothing. Weights are read where they are, for as long as the call lasts.
        """
        (num_rows, width), (num_experts, _, inner) = x_nE.shape, down_XEI.shape
        assert width % LANES == inner % LANES == 0, "whole registers of products"
        assert gate_up_XJE.shape == (num_experts, 2 * inner, width), "a gate and an up for each number between"
        assert down_XEI.shape == (num_experts, width, inner), "from the numbers between to a whole row"
        assert gate_up_XJE.is_contiguous(), "one output lies after the other"
        assert down_XEI.is_contiguous(), "there too"
        assert gate_up_XJE.dtype == down_XEI.dtype, "one precision"
        assert chosen_nk.dtype == torch.int64, "what the kernel reads"
        assert chosen_nk.shape == shares_nk.shape, "a share for each choice"
        assert len(chosen_nk) == num_rows, "choices of every row"
        x, chosen, shares = x_nE.float().contiguous(), chosen_nk.contiguous(), shares_nk.float().contiguous()
        out_nE = torch.empty_like(x)
        pointers = (tensor.data_ptr() for tensor in (x, gate_up_XJE, down_XEI, chosen, shares, out_nE))
        sizes = num_rows, chosen.shape[1], num_experts, width, inner
        self._experts(_HALF[down_XEI.dtype], _Experts(*pointers, *sizes, torch.get_num_threads()))
        return out_nE.to(x_nE.dtype)

    def choose(self, logits_BV: Tensor, uniforms_B2: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """A token of every row, drawn from `softmax(logits / temperature)`, and its log-probability, `[B]` each.

        The uniform numbers are float64 and used as in `posttrain.rollout.sampling`. Logits that are not numbers give
        some token, and a log-probability that is not a number either.
        """
        logits_BV, uniforms_B2 = logits_BV.contiguous(), uniforms_B2.contiguous()
        num_rows, num_tokens = logits_BV.shape
        ids_B, logprobs_B = (
            logits_BV.new_empty(num_rows, dtype=torch.long),
            logits_BV.new_empty(num_rows, dtype=torch.float32),
        )
        pointers = (x.data_ptr() for x in (logits_BV, uniforms_B2, ids_B, logprobs_B))
        sizes = num_rows, num_tokens, temperature, torch.get_num_threads()
        self._choose(_HALF[logits_BV.dtype], *pointers, *sizes)
        return ids_B, logprobs_B


def _segments(tensors: Sequence[Tensor | None], of: Families, scaling: float) -> _Segments:
    """In the order of the struct: queries, keys and values first."""
    query_LHD, _, value_LKE = (x for x in tensors[:3] if x is not None)
    pointers = [None if x is None else x.data_ptr() for x in (*tensors, of.segments, of.starts)]
    num_keys, width = value_LKE.shape[1:]
    sizes = of.number, query_LHD.shape[1], num_keys, query_LHD.shape[2], width
    return _Segments(*pointers, *sizes, scaling, torch.get_num_threads())


def in_panels(weight_MK: Tensor) -> Tensor:
    """A copy of a weight as `Kernels.linear` reads it, flat: transposed, `PANEL` outputs after the other."""
    whole = len(weight_MK) // PANEL * PANEL
    panels, rest = weight_MK[:whole].unflatten(0, (-1, PANEL)), weight_MK[whole:]
    return torch.cat([panels.transpose(1, 2).flatten(), rest.T.flatten()])


def _function(library: ctypes.CDLL, name: str, *arguments: Any) -> Any:
    function = getattr(library, f"posttrain_{name}")
    function.argtypes, function.restype = arguments, None
    return function


def can_compute(device: torch.device, *dtypes: torch.dtype) -> bool:
    """Whether kernels are for tensors there and of these kinds."""
    return device.type == "cpu" and _HALF.keys() >= set(dtypes)


_in_training: ContextVar[Kernels | None] = ContextVar("posttrain_training_kernels", default=None)


@contextmanager
def training_by(kernels: Kernels | None) -> Iterator[None]:
    """Passes of training inside, forward and backward, are computed by these where they know how; None: by PyTorch."""
    token = _in_training.set(kernels)
    try:
        yield
    finally:
        _in_training.reset(token)


def in_training() -> Kernels | None:
    """Those of the `training_by` around."""
    return _in_training.get()


def kernels() -> Kernels | None:
    """Those of this machine, compiled now if they have not been before; None for the reason that `why_none` gives."""
    return found().kernels


def why_none() -> str:
    """In one sentence; empty where there are kernels."""
    return found().why_none


def made_by() -> str:
    """The compiler and the source: what these kernels compute may differ in the last bits from what others do."""
    return found().compiler


@dataclass(frozen=True)
class Found:
    """The kernels of this machine, or why there are none."""

    kernels: Kernels | None = None
    why_none: str = ""
    compiler: str = ""


@cache
def found() -> Found:
    """Asked once for the whole process."""
    asked = os.environ.get(SWITCH) or "compiled"
    if asked != "compiled":
        allowed = "" if asked in SETTINGS else f", which is none of {', '.join(SETTINGS)}"
        return Found(why_none=f"{SWITCH} = {asked}{allowed}")
    try:
        compiler = find_compiler()
        made = Kernels(compiled(SOURCE, compiler))
        # whatever is in force where they are needed
        with torch.device("cpu"), torch.autocast("cpu", enabled=False), torch.inference_mode(False):
            check(made)
    except Unavailable as error:
        return Found(why_none=str(error))
    source = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:8]
    return Found(kernels=made, compiler=f"{compiler.version}, kernels {source}")


@torch.no_grad()
def check(made: Kernels) -> None:
    """Compare each function with its formula, in both precisions; raises Unavailable where one differs."""
    generator = torch.Generator().manual_seed(0)
    for dtype in TOLERANCE:
        for name, (actual, expected) in _pairs(made, dtype, generator).items():
            if not (actual.float() - expected).abs().max() <= TOLERANCE[dtype] * expected.abs().max():
                raise Unavailable(f"{name} differs from its formula in {dtype}")


def _pairs(made: Kernels, dtype: torch.dtype, generator: torch.Generator) -> dict[str, tuple[Tensor, Tensor]]:
    """What each function gives, and what its formula gives in float32 of the same numbers."""

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float32).to(dtype)

    x_LE, weight_E, angles_L1D = noise(3, 48), torch.rand(48, generator=generator, dtype=torch.float32), noise(3, 1, 32)
    heads_LND, gate_up_LI = noise(3, 4, 32), 4 * noise(3, 96)
    exact, rotated = x_LE.float(), heads_LND.clone()
    made.rotate_(rotated[:, :3], angles_L1D.cos(), angles_L1D.sin())
    swapped = heads_LND.float().roll(16, dims=-1)
    expected = heads_LND.float() * angles_L1D.cos().float() + swapped * angles_L1D.sin().float()
    gate, up = gate_up_LI.float().chunk(2, dim=-1)
    weight_MK, bias_M = noise(80, 48).float(), noise(80).float()
    return {
        "linear": (made.linear(exact, in_panels(weight_MK), bias_M, 80), exact @ weight_MK.T + bias_M),
        "rms_norm": (made.rms_norm(x_LE, weight_E, 0.1), _normed(exact, weight_E)),
        "rotate": (rotated, torch.cat([expected[:, :3], heads_LND[:, 3:].float()], dim=1)),
        "silu_gate": (made.silu_gate(gate_up_LI), torch.nn.functional.silu(gate) * up),
        "attend_rows": _attention_pair(made, noise),
        **_segment_pairs(made, noise),
        **_backward_pairs(made, noise, weight_E),
        "experts": _experts_pair(made, noise),
        **_choice_pairs(made, 3 * noise(40, 700)),
    }


def _choice_pairs(made: Kernels, logits_BV: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Tokens and their log-probabilities, drawn by uniform numbers from near 0 to near 1 and the other way round."""
    num_rows, logprobs_BV = len(logits_BV), (logits_BV.float() / 0.7).log_softmax(dim=-1)
    steps_B = (torch.arange(num_rows, dtype=torch.float64) + 0.5) / num_rows
    ids_B, actual_B = made.choose(logits_BV, torch.stack([steps_B, steps_B.flip(0)], dim=1), 0.7)
    expected_B = logprobs_BV.gather(1, ids_B[:, None])[:, 0]
    weights_BNb = torch.nn.functional.pad(logprobs_BV.exp(), (0, -700 % 256)).view(num_rows, -1, 256).double()
    running_BN = weights_BNb.sum(dim=-1).cumsum(dim=-1)
    blocks_B = (running_BN <= steps_B[:, None] * running_BN[:, -1:]).sum(dim=-1)
    inside_Bb = weights_BNb[torch.arange(num_rows), blocks_B].cumsum(dim=-1)
    tokens_B = blocks_B * 256 + (inside_Bb <= steps_B.flip(0)[:, None] * inside_Bb[:, -1:]).sum(dim=-1)
    return {"choose (tokens)": (ids_B, tokens_B.float()), "choose": (actual_B, expected_B)}


def _experts_pair(made: Kernels, noise: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    """Of nine rows and four experts, one of which nobody chose and one everybody."""
    x_nE, gate_up_XJE, down_XEI, shares_nk = noise(9, 48), noise(4, 64, 48), noise(4, 48, 32), noise(9, 2)
    chosen_nk = torch.tensor([[2, row % 2] for row in range(9)])
    expected = torch.zeros(9, 48, dtype=torch.float32)
    for row in range(9):
        for expert, share in zip(chosen_nk[row], shares_nk[row].float(), strict=True):
            gate, up = (gate_up_XJE[expert].float() @ x_nE[row].float()).chunk(2)
            expected[row] += share * (down_XEI[expert].float() @ (torch.nn.functional.silu(gate) * up))
    return made.experts(x_nE, gate_up_XJE, down_XEI, chosen_nk, shares_nk), expected


def _attention_pair(made: Kernels, noise: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    """Of three rows after two prompts, two query heads of width 32 for each of two key heads."""
    prompt_n, lengths, ages, scaling = [1, 0, 1], [19, 5], [0, 17, 3], 0.2
    qkv_nND, mask_nC = noise(3, 8, 32), noise(3, 32 + 32)
    prompts, rows = ((noise(slots, 2, 32, 48), noise(slots, 2, 48, 32)) for slots in (2, 3))
    places = RowPlaces.of(prompt_n, lengths)
    out_nHD = made.attend_rows(qkv_nND, places, torch.tensor(ages), prompts, rows, scaling, mask_nC, 32).view(3, 4, 32)
    expected = torch.zeros(3, 4, 32, dtype=torch.float32)
    for row, (prompt, age) in enumerate(zip(prompt_n, ages, strict=True)):
        length = lengths[prompt]
        added_C = torch.cat([mask_nC[row, :length], mask_nC[row, 32 : 33 + age]]).float()
        for head in range(4):
            past = prompts[0][prompt, head // 2, :, :length], rows[0][row, head // 2, :, :age]
            keys_DC = torch.cat([*past, qkv_nND[row, 4 + head // 2, :, None]], dim=-1).float()
            past = prompts[1][prompt, head // 2, :length], rows[1][row, head // 2, :age]
            values_CD = torch.cat([*past, qkv_nND[row, 6 + head // 2, None]]).float()
            scores_C = qkv_nND[row, head].float() @ keys_DC * scaling + added_C
            expected[row, head] = scores_C.softmax(dim=-1) @ values_CD
    return out_nHD, expected


def _normed(x: Tensor, weight_E: Tensor) -> Tensor:
    return x * (x.square().mean(dim=-1, keepdim=True) + 0.1).rsqrt() * weight_E


@torch.enable_grad()
def _backward_pairs(made: Kernels, noise: Callable[..., Tensor], weight_E: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Norm and gate as training computes them, and their gradients; of more rows than sums are taken in parts of."""
    x_LE, gate_LE, up_LE, gradient_LE = noise(21, 48), 4 * noise(21, 48), noise(21, 48), noise(21, 48)
    x, gate, up = (tensor.float().requires_grad_() for tensor in (x_LE, gate_LE, up_LE))
    weight = weight_E.clone().requires_grad_()
    normed, gated = _normed(x, weight), torch.nn.functional.silu(gate) * up
    of_norm = torch.autograd.grad(normed, (x, weight), gradient_LE.float())
    of_gate = torch.autograd.grad(gated, (gate, up), gradient_LE.float())
    out, factors = made.rms_norm_kept(x_LE, weight_E, 0.1, torch.float32)
    found = made.rms_norm_backward(gradient_LE, x_LE, weight_E, factors)
    found += made.silu_gate_backward(gradient_LE, gate_LE, up_LE)
    names = ("rms_norm (x)", "rms_norm (weight)", "silu_gate (gate)", "silu_gate (up)")
    return {
        "rms_norm in training": (out, normed.detach()),
        "silu_gate in training": (made.silu_gate_of(gate_LE, up_LE), gated.detach()),
        **dict(zip(names, zip(found, of_norm + of_gate, strict=True), strict=True)),
    }


@torch.enable_grad()
def _segment_pairs(made: Kernels, noise: Callable[..., Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """Of a row of 40 tokens, one of 21 that begins with 17 of those, and one alone; four query heads, two key heads."""
    rows = [[*range(40)], [*range(17), *range(40, 44)], [*range(44, 64)]]
    families = Families(torch.tensor([[0, 40, 0], [40, 4, 17], [44, 20, 0]]), torch.tensor([0, 2, 3]))
    tensors = noise(64, 4, 32), noise(64, 2, 32), noise(64, 2, 16)
    query, key, value = (x.float().requires_grad_() for x in tensors)
    expected, own = torch.zeros(64, 4, 16, dtype=torch.float32), [0, 17, 0]
    for row, first in zip(rows, own, strict=True):
        q, k, v = (x[row].transpose(0, 1) for x in (query, key, value))
        k, v = (x.repeat_interleave(2, dim=0) for x in (k, v))
        hidden_TT = torch.ones(len(row), len(row), dtype=torch.bool).triu(1)
        weights = (q @ k.transpose(1, 2) * 0.2).masked_fill(hidden_TT, -torch.inf).softmax(dim=-1)
        expected = expected.index_add(0, torch.tensor(row[first:]), (weights @ v).transpose(0, 1)[first:])
    gradient = noise(64, 4, 16)
    gradients = torch.autograd.grad(expected, (query, key, value), gradient.float())
    out, logsums = made.attend_segments(*tensors, families, 0.2)
    found = made.attend_segments_backward(gradient, *tensors, logsums, families, 0.2)
    names = ("queries", "keys", "values")
    pairs = {f"attend_segments ({name})": pair for name, *pair in zip(names, found, gradients, strict=True)}
    return {"attend_segments": (out, expected.detach()), **{name: (a, b) for name, (a, b) in pairs.items()}}
