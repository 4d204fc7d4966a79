"""The limits of the machine: matrix products with the shapes of a training step, and reading memory.

The share of a training pass is the time for its matrix products alone, measured with their own shapes in the same run,
divided by the time of the whole pass. No product counts twice: one product forward and two backward (the gradients of
the input and of the weight), over the tokens that must be computed, with each prompt once for its group. The output
head counts over the trained tokens.
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
"""(rows, inputs, outputs, number of such products)"""


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
    """Number of floating-point operations, forward and backward."""
    return sum(3.0 * 2.0 * rows * inputs * outputs * count for rows, inputs, outputs, count in found)


def seconds_of_products(found: list[Product], dtype: torch.dtype) -> float:
    """Time of all products, in seconds. Each shape is measured separately, with its operands already in memory."""
    return sum(count * _three_products(rows, inputs, outputs, dtype) for rows, inputs, outputs, count in found)


def matmul_gflops(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> float:
    """GFLOP/s of the product x @ W^T of a linear layer."""
    x, w = torch.randn(rows, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
    return 2e-9 * rows * inputs * outputs / _median(lambda: x @ w.T)


def bandwidth_gb(megabytes: int = 1024) -> float:
    """Rate of reading float32 numbers that are not in a cache, in GB/s."""
    values = torch.ones(megabytes * 2**18)
    return values.numel() * 4e-9 / _median(values.sum)


def rates() -> dict[str, float]:
    """GFLOP/s of a large product in each precision, and GB/s of reading memory."""
    shape = (4096, 768, 3072)
    found = {"float32": matmul_gflops(*shape, torch.float32)}
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")  # lets oneDNN compute it if possible
    try:
        found["float32 through oneDNN"] = matmul_gflops(*shape, torch.float32)
    finally:
        torch.set_float32_matmul_precision(before)
    found["bfloat16"] = matmul_gflops(*shape, torch.bfloat16)
    return {name: round(value, 1) for name, value in found.items()} | {"memory_gb_per_s": round(bandwidth_gb(), 1)}


def _three_products(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> float:
    """Time of the products for output, input gradient and weight gradient, in seconds."""
    rows_kept = min(rows, 4096)  # for a large head; more rows do not change the rate
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
