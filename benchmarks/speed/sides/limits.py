"""The machine itself as a side: it takes its turns between the training passes that are compared with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from benchmarks.speed import limits
from benchmarks.speed.gate import Gate
from benchmarks.speed.workload import read


def matrix_products(folder: Path, settings: dict[str, Any], gate: Gate) -> None:
    """All matrix products of a training pass and nothing else, at their own shapes; `settings` is `dtype`."""
    work = read(folder)
    products = limits.products(work["model"], work["tokens"])
    while True:
        seconds = limits.seconds_of_products(products, getattr(torch, settings["dtype"]))
        gate.turn(products=seconds, gflops=limits.operations(products) / seconds * 1e-9)
