"""The machine itself as a side, which takes turns with the training passes that are compared with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from benchmarks.speed import limits
from benchmarks.speed.gate import Gate
from benchmarks.speed.workload import read


def matrix_products(folder: Path, settings: dict[str, Any], gate: Gate) -> None:
    """Compute only the matrix products of a training pass, with their own shapes; `settings` is `dtype`."""
    work = read(folder)
    products = limits.products(work["model"], work["tokens"])
    while True:
        seconds = limits.seconds_of_products(products, getattr(torch, settings["dtype"]))
        gate.turn(products=seconds, gflops=limits.operations(products) / seconds * 1e-9)
