"""Rates of the GPU: matrix products in bfloat16, and copies in its memory. `python -m benchmarks.gpu.rates DEVICE`

The numbers are random, because products of equal numbers draw less power and run faster than in any training. The
rates are medians of several tries.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch

TRIES = 20


def rates(device: str) -> dict[str, float]:
    """Floating-point operations per second of a large product, and bytes per second, read and written, of a copy."""
    size, numbers = (8192, 2**29) if device == "cuda" else (512, 2**22)
    a, b = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
    source = torch.randn(numbers, device=device)
    target = torch.empty_like(source)
    return {
        "bfloat16_flops": 2 * size**3 / seconds_of(lambda: a @ b, device),
        "bytes_per_second": 2 * source.nbytes / seconds_of(lambda: target.copy_(source), device),
    }


def seconds_of(work: Callable[[], object], device: str) -> float:
    def once() -> float:
        started = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    for _ in range(3):
        once()
    return statistics.median(once() for _ in range(TRIES))


if __name__ == "__main__":
    print(json.dumps(rates(sys.argv[1])))
