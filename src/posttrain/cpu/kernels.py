"""Compiled kernels for a CPU (kernels.cpp): attention, and single calls that replace 4 to 17 calls of PyTorch.

In a pass over a few rows of a small model, the overhead of calls dominates. Attention of single queries by PyTorch's
batched products reaches a tenth of the processor's speed. If the machine has a C++ compiler (`CXX`, or g++), the
kernels are compiled once for its processor. Before they are used, each is compared with its formula
(kernel_formulas.py). If there is no compiler, or with POSTTRAIN_KERNELS=torch, operations of PyTorch compute the same.
A run saves which of the two it began with (compute.py).

L tokens, n rows, P prompts, E width of the model, I width of a gated MLP or expert, X experts, k experts for each row,
H query heads, K key-value heads, N = H + 2 K, D width of a head, C columns of keys and values. In training, E is the
width of the values.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posttrain.cpu.kernel_formulas import Families, RowPlaces, Unavailable, check, compiled, find_compiler
from posttrain.models.compute import Compute
from posttrain.models.footprint import LANES

SOURCE = Path(__file__).with_suffix(".cpp")
SWITCH = "POSTTRAIN_KERNELS"
SETTINGS = ("compiled", "torch")
Parts = tuple[Tensor, Tensor, Tensor]
"""Queries `[L, H, D]`, keys `[L, K, D]` and values `[L, K, E]`, or their gradients."""
Stored = tuple[Tensor, Tensor]
"""Keys `[slots, K, D, C]` and values `[slots, K, C, D]`."""
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
        *((name, ctypes.c_int64) for name in ("q_stride", "k_stride", "v_stride")),
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


class Kernels:
    """The functions of a compiled library. All tensors are on the CPU, in float32 or bfloat16."""

    def __init__(self, library: Path) -> None:
        """Load the library. Raises Unavailable if that fails."""
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
        self._linear = {torch.float32: _function(functions, "linear", *four, *sizes, threads)}
        if hasattr(functions, "posttrain_linear_of_pairs"):
            self._linear[torch.bfloat16] = _function(functions, "linear_of_pairs", *four, *sizes, threads)
        self._attend_rows = _function(functions, "attend_rows", half, ctypes.POINTER(_Attention))
        self._attend_segments = _function(functions, "attend_segments", half, half, ctypes.POINTER(_Segments))
        self._rms_norm = _function(functions, "rms_norm", half, *four[:3], size, size, number, threads)
        self._rotate = _function(functions, "rotate", half, *four[:3], *sizes, size, threads)
        self._silu_gate = _function(functions, "silu_gate", half, *four[:3], *sizes, threads)
        self._experts = _function(functions, "experts", half, ctypes.POINTER(_Experts))
        self._choose = _function(functions, "choose", half, *four, size, size, number, threads)

    def linear(self, x: Tensor, panels: Tensor, bias_M: Tensor | None, outputs: int) -> Tensor:
        """`x @ weight.T + bias`, for `x` of any leading shape and the weight `in_panels`. See `can_multiply`."""
        inputs = x.shape[-1]
        assert self.can_multiply(x.dtype, inputs, outputs), (
            "the kernel does not support this precision or this number of inputs or outputs"
        )
        assert panels.numel() == inputs * outputs, "the panels must hold a weight for each input and output"
        assert x.dtype == panels.dtype, "input and weight must have the same precision"
        assert panels.is_contiguous(), "the panels must be contiguous"
        x, out = x.contiguous(), x.new_empty(*x.shape[:-1], outputs)
        bias = None
        if bias_M is not None:
            assert (bias_M.dtype, bias_M.shape) == (x.dtype, (outputs,)), "the bias must have a number for each output"
            assert bias_M.is_contiguous(), "the bias must be contiguous"
            bias = bias_M.data_ptr()
        pointers = x.data_ptr(), panels.data_ptr(), bias, out.data_ptr()
        self._linear[x.dtype](*pointers, x.numel() // inputs, inputs, outputs, torch.get_num_threads())
        return out

    def can_multiply(self, dtype: torch.dtype, inputs: int, outputs: int) -> bool:
        """Whether `linear` supports weights `[outputs, inputs]` of this precision on this processor.

        bfloat16 needs a processor with instructions for pairs of numbers and without tiles (AMX), for which oneDNN is
        faster.
        """
        whole = inputs > 0 and not outputs % LANES and not (dtype == torch.bfloat16 and inputs % 2)
        return dtype in self._linear and whole

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
        """The attention of new tokens, `[n, H D]`. Their keys and values are first written to column `ages_n` of their
        rows.

        `qkv_nND`: rotated queries, rotated keys, values, N = H + 2 K; D is a multiple of 2 `LANES`. The mask is added
        to the scores: `mask_columns` columns of prompts, then those of rows. None: a row sees its whole prompt and all
        of its own tokens.
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
        """Causal attention within segments, `[L, H, E]`, and the log-sums `[L, H]` that its backward pass needs.

        The heads of a token are contiguous, each token is in one segment, D and E are multiples of `LANES`.
        """
        length, num_heads, _ = query_LHD.shape
        out_LHE = query_LHD.new_empty(length, num_heads, value_LKE.shape[-1])
        logsums_LH = query_LHD.new_empty(length, num_heads, dtype=torch.float32)
        forward = (query_LHD, key_LKD, value_LKE, out_LHE, logsums_LH, None, None, None, None)
        self._attend_segments(_HALF[query_LHD.dtype], False, _segments(forward, of, scaling))
        return out_LHE, logsums_LH

    def attend_segments_backward(
        self, gradient_LHE: Tensor, given: Parts, found: Parts, logsums_LH: Tensor, of: Families, scaling: float
    ) -> None:
        """Write the gradients of the `given` queries, keys and values to `found`, which has the same strides."""
        assert all(map(_beside_each_other, found)), "the heads of a token must be contiguous"
        assert [x.stride(0) for x in given] == [x.stride(0) for x in found], "gradients must have the same strides"
        backward = (*given, None, logsums_LH, gradient_LHE.contiguous(), *found)
        self._attend_segments(_HALF[given[0].dtype], True, _segments(backward, of, scaling))

    def rms_norm(self, x: Tensor, weight_E: Tensor, epsilon: float) -> Tensor:
        """`x / sqrt(mean(x^2) + epsilon) * weight`; the weight is float32, E a multiple of `LANES`."""
        assert x.shape[-1] == len(weight_E), "the weight must have a number for each number of a row"
        x = x.contiguous()
        out, width = torch.empty_like(x), len(weight_E)
        pointers = x.data_ptr(), weight_E.data_ptr(), out.data_ptr()
        self._rms_norm(_HALF[x.dtype], *pointers, x.numel() // width, width, epsilon, torch.get_num_threads())
        return out

    def rotate_(self, x_LND: Tensor, cos_L1D: Tensor, sin_L1D: Tensor) -> None:
        """Compute `x cos + swap(x) sin` in place. The sine includes the sign of the swapped halves; D as in
        `attend_rows`.

        The heads of a token are contiguous. Other values of the token may follow them.
        """
        length, heads, width = x_LND.shape
        assert _beside_each_other(x_LND), "the heads of a token must be contiguous"
        assert x_LND.dtype == cos_L1D.dtype == sin_L1D.dtype, "all must have the same precision"
        pointers = x_LND.data_ptr(), cos_L1D.data_ptr(), sin_L1D.data_ptr()
        self._rotate(_HALF[x_LND.dtype], *pointers, length, heads, width, x_LND.stride(0), torch.get_num_threads())

    def silu_gate(self, gate_up_LI: Tensor) -> Tensor:
        """`silu(gate) * up` for the two halves of the last dimension, each a multiple of `LANES`."""
        gate_up_LI = gate_up_LI.contiguous()
        gate, up = gate_up_LI.chunk(2, dim=-1)
        width = gate.shape[-1]
        assert width % LANES == 0, "the width must fill whole registers"
        out = gate.new_empty(gate.shape)
        pointers = gate.data_ptr(), up.data_ptr(), out.data_ptr()
        sizes = out.numel() // width, width, gate_up_LI.shape[-1]
        self._silu_gate(_HALF[out.dtype], *pointers, *sizes, torch.get_num_threads())
        return out

    def experts(
        self, x_nE: Tensor, gate_up_XJE: Tensor, down_XEI: Tensor, chosen_nk: Tensor, shares_nk: Tensor
    ) -> Tensor:
        """The sum of `down(silu(gate x) * up x)` over the experts that a row chose, weighted by their shares, `[n, E]`.

        J = 2 I, gates before ups; E and I are multiples of `LANES`. Choices are int64; an invalid expert number adds
        nothing. Weights are read in place during the call.
        """
        (num_rows, width), (num_experts, _, inner) = x_nE.shape, down_XEI.shape
        assert width % LANES == inner % LANES == 0, "both widths must fill whole registers"
        assert gate_up_XJE.shape == (num_experts, 2 * inner, width), "gate_up must have the shape [X, 2 I, E]"
        assert down_XEI.shape == (num_experts, width, inner), "down must have the shape [X, E, I]"
        assert gate_up_XJE.is_contiguous(), "gate_up must be contiguous"
        assert down_XEI.is_contiguous(), "down must be contiguous"
        assert gate_up_XJE.dtype == down_XEI.dtype, "all weights must have the same precision"
        assert chosen_nk.dtype == torch.int64, "the kernel reads choices as int64"
        assert chosen_nk.shape == shares_nk.shape, "each choice must have a share"
        assert len(chosen_nk) == num_rows, "each row must have choices"
        x, chosen, shares = x_nE.float().contiguous(), chosen_nk.contiguous(), shares_nk.float().contiguous()
        out_nE = torch.empty_like(x)
        pointers = (tensor.data_ptr() for tensor in (x, gate_up_XJE, down_XEI, chosen, shares, out_nE))
        sizes = num_rows, chosen.shape[1], num_experts, width, inner
        self._experts(_HALF[down_XEI.dtype], _Experts(*pointers, *sizes, torch.get_num_threads()))
        return out_nE.to(x_nE.dtype)

    def choose(self, logits_BV: Tensor, uniforms_B2: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """A token for each row, sampled from `softmax(logits / temperature)`, and its log-probability, `[B]` each.

        The uniform numbers are float64 and used as in `posttrain.engines.sampling`. For NaN logits the token is
        arbitrary and the log-probability is NaN.
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
    """The struct for these tensors, which are in its order: queries, keys and values first."""
    parts = query_LHD, _, value_LKE = [x for x in tensors[:3] if x is not None]
    assert all(map(_beside_each_other, parts)), "the heads of a token must be contiguous"
    pointers = [None if x is None else x.data_ptr() for x in (*tensors, of.segments, of.starts)]
    num_keys, width = value_LKE.shape[1:]
    sizes = of.number, query_LHD.shape[1], num_keys, query_LHD.shape[2], width
    return _Segments(*pointers, *sizes, *(x.stride(0) for x in parts), scaling, torch.get_num_threads())


def _beside_each_other(x_LND: Tensor) -> bool:
    """Whether the heads of a token are contiguous."""
    return x_LND.stride(2) == 1 and (x_LND.shape[1] == 1 or x_LND.stride(1) == x_LND.shape[2])


def _function(library: ctypes.CDLL, name: str, *arguments: Any) -> Any:
    function = getattr(library, f"posttrain_{name}")
    function.argtypes, function.restype = arguments, None
    return function


def can_compute(device: torch.device, *dtypes: torch.dtype) -> bool:
    """Whether the kernels support tensors on this device in these precisions."""
    return device.type == "cpu" and _HALF.keys() >= set(dtypes)


_in_training: ContextVar[Kernels | None] = ContextVar("posttrain_training_kernels", default=None)


@contextmanager
def training_by(kernels: Kernels | None) -> Iterator[None]:
    """Compute training passes inside, forward and backward, with these kernels as far as they can; None: by PyTorch."""
    token = _in_training.set(kernels)
    try:
        yield
    finally:
        _in_training.reset(token)


def in_training() -> Kernels | None:
    """The kernels of the enclosing `training_by`; None if there are none."""
    return _in_training.get()


def chosen(compute: Compute) -> Kernels | None:
    """The kernels; None if operations of PyTorch were chosen."""
    return kernels() if compute.kernels == "compiled" else None


def kernels() -> Kernels | None:
    """The kernels of this machine, compiled now if necessary. If None, `why_none` gives the reason."""
    return found().kernels


def why_none() -> str:
    """The reason why there are no kernels, in one sentence; empty if there are kernels."""
    return found().why_none


def made_by() -> str:
    """The compiler, and a hash of the source. Results of kernels with another value may differ in the last bits."""
    return found().compiler


@dataclass(frozen=True)
class Found:
    """The kernels of this machine, or the reason why there are none."""

    kernels: Kernels | None = None
    why_none: str = ""
    compiler: str = ""


@cache
def found() -> Found:
    """Compile or load the kernels, once in this process."""
    asked = os.environ.get(SWITCH) or "compiled"
    if asked != "compiled":
        allowed = "" if asked in SETTINGS else f", which is none of {', '.join(SETTINGS)}"
        return Found(why_none=f"{SWITCH} = {asked}{allowed}")
    try:
        compiler = find_compiler()
        made = Kernels(compiled(SOURCE, compiler))
        # the caller may have set another device, autocast or inference mode
        with torch.device("cpu"), torch.autocast("cpu", enabled=False), torch.inference_mode(False):
            check(made)
    except Unavailable as error:
        return Found(why_none=str(error))
    source = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:8]
    return Found(kernels=made, compiler=f"{compiler.version}, kernels {source}")
