"""What the machine can do: matrix products at the shapes of a training step, and reading memory.

The share of a training pass is the time that its matrix products alone would take, measured at their own shapes in the
same run, over the time that the whole pass took. It counts no product twice: forward once, backward twice (the gradient
of the input and that of the weight), over the tokens that have to be computed, each prompt once per group, and the
output head over the tokens that are trained.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

REPETITIONS = 5

Product = tuple[int, int, int, int]
"""(rows, inputs, outputs, how many of them)"""


def products(model: dict[str, Any], tokens: dict[str, int]) -> list[Product]:
    """The linear layers of one training pass of a dense model, the head last."""
    hidden, layers = model["hidden_size"], model["num_hidden_layers"]
    width = model.get("head_dim", hidden // model["num_attention_heads"])
    queries, keys = width * model["num_attention_heads"], width * model["num_key_value_heads"]
    inner = model["intermediate_size"]
    return [
        (tokens["shared"], hidden, queries, layers),
        (tokens["shared"], hidden, keys, 2 * layers),
        (tokens["shared"], queries, hidden, layers),
        (tokens["shared"], hidden, inner, 2 * layers),
        (tokens["shared"], inner, hidden, layers),
        (tokens["sampled"], hidden, model["vocab_size"], 1),
    ]


def operations(found: list[Product]) -> float:
    """Floating-point operations, forward and backward."""
    return sum(3.0 * 2.0 * rows * inputs * outputs * count for rows, inputs, outputs, count in found)


def seconds_of_products(found: list[Product], dtype: torch.dtype) -> float:
    """What all of them take, each shape measured by itself with its operands in memory already."""
    return sum(count * _three_products(rows, inputs, outputs, dtype) for rows, inputs, outputs, count in found)


def matmul_gflops(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> float:
    """Of x @ W^T, as a linear layer has it."""
    x, w = torch.randn(rows, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
    return 2e-9 * rows * inputs * outputs / _median(lambda: x @ w.T)


def bandwidth_gb(megabytes: int = 1024) -> float:
    """GB/s of reading float32 numbers that are in no cache."""
    values = torch.ones(megabytes * 2**18)
    return values.numel() * 4e-9 / _median(values.sum)


def rates() -> dict[str, float]:
    """GFLOP/s of one large product in each precision, and GB/s."""
    shape = (4096, 768, 3072)
    found = {"float32": matmul_gflops(*shape, torch.float32)}
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")  # lets oneDNN do it where it can
    try:
        found["float32 through oneDNN"] = matmul_gflops(*shape, torch.float32)
    finally:
        torch.set_float32_matmul_precision(before)
    found["bfloat16"] = matmul_gflops(*shape, torch.bfloat16)
    return {name: round(value, 1) for name, value in found.items()} | {"memory_gb_per_s": round(bandwidth_gb(), 1)}


def _three_products(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> float:
    """Output, gradient of the input, gradient of the weight."""
    rows_kept = min(rows, 4096)  # of a large head; the rate does not depend on more
    x, w = torch.randn(rows_kept, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
    g = torch.randn(rows_kept, outputs).to(dtype)
    steps: list[Callable[[], Tensor]] = [lambda: x @ w.T, lambda: g @ w, lambda: g.T @ x]
    return sum(map(_median, steps)) * rows / rows_kept


def _median(action: Callable[[], object]) -> float:
    action()
    seconds = []
    for _ in range(REPETITIONS):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)
