"""Where the time of a training pass goes: the profiler's operators, sorted into a few kinds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

from benchmarks.speed.gate import Gate
from benchmarks.speed.limits import products
from benchmarks.speed.sides.posttrain import trained_experience
from benchmarks.speed.workload import read
from torch.profiler import ProfilerActivity, profile

from posttrain.train.loop import train_step

KINDS = {
    "optimizer": r"adam|foreach|_fused_",
    "attention": r"attention|softmax|bmm|baddbmm",
    "casts and copies": r"^aten::(_?to$|_to_copy|copy_|clone|contiguous|cat|index|gather|scatter|fill_|zero_)",
}
"""In this order, by the operator's name; matrix products are told apart by their shapes."""
PRODUCTS = r"^aten::(mm|addmm|_?linear|matmul)|mkldnn.*linear|^mkldnn::"


def training_pass(folder: Path, settings: dict[str, Any], gate: Gate) -> None:
    """One `train_step` per turn, its operators' own seconds by kind."""
    widths = {width for _, *both, _ in products(read(folder)["model"], read(folder)["tokens"])[:-1] for width in both}
    for run, experience in trained_experience(folder, settings):
        for step in range(1, 1000):
            with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
                train_step(run, experience, step)
            seconds: Counter[str] = Counter()
            for event in found.key_averages(group_by_input_shape=True):
                seconds[kind_of(event.key, event.input_shapes, widths)] += event.self_cpu_time_total * 1e-6
            gate.turn(**{f"kind/{name}": value for name, value in seconds.items()})


def kind_of(name: str, shapes: list[list[int]], widths: Collection[int]) -> str:
    """`widths` are those of the layers: a product with two sizes beside them is of tokens with the vocabulary.

    >>> kind_of("aten::mm", [[700, 32], [32, 96]], {32, 96}), kind_of("aten::mm", [[700, 32], [32, 4096]], {32, 96})
    ('matrix products of the layers', 'matrix products of the head')
    """
    if re.search(PRODUCTS, name):
        others = {size for shape in shapes[:2] for size in shape} - set(widths)
        return f"matrix products of the {'head' if len(others) > 1 else 'layers'}"
    for kind, pattern in KINDS.items():
        if re.search(pattern, name):
            return kind
    return "norms, activations and other elementwise work"
