"""The profile of a training pass: the operators of the profiler, sorted into a few kinds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed.gate import Gate
from benchmarks.speed.sides.posttrain import trained_experience
from torch.profiler import ProfilerActivity, profile

from posttrain.train.loop import train_step

KINDS = {
    "output head: products, softmax, gradient": r"^LinearLogprobs",
    "optimizer": r"^Optimizer|clip_grad|_foreach_norm",
    "attention": r"[Aa]ttention|flex|softmax|bmm",
    "matrix products of the layers": r"^aten::(mm|addmm|_?linear|matmul)|mkldnn.*linear|^mkldnn::",
    "casts and copies": r"^aten::(_?to$|_to_copy|copy_|clone|contiguous|cat|index|gather|scatter|fill_|zero_)",
}
"""Kind -> pattern for the names of an operator and of its callers. The first match counts."""
REST = "norms, activations, other elementwise work"


def training_pass(folder: Path, settings: dict[str, Any], gate: Gate) -> None:
    """Do one `train_step` for each turn, and report the operators' own seconds by kind."""
    for run, experience in trained_experience(folder, settings):
        for step in range(1, 1000):
            with profile(activities=[ProfilerActivity.CPU]) as found:
                train_step(run.trainer, experience, step)
            seconds: Counter[str] = Counter()
            for event in found.events() or []:
                seconds[kind_of(_callers(event))] += event.self_cpu_time_total * 1e-6
            gate.turn(**{f"kind/{name}": value for name, value in seconds.items()})


def kind_of(names: Sequence[str]) -> str:
    """The kind of an operator. `names` are the names of the operator and of its callers, innermost first.

    >>> kind_of(["aten::mm", "MmBackward0"]), kind_of(["aten::mm", "LinearLogprobsBackward"])
    ('matrix products of the layers', 'output head: products, softmax, gradient')
    """
    return next((kind for kind, known in KINDS.items() if any(re.search(known, name) for name in names)), REST)


def _callers(event: Any) -> list[str]:
    names = []
    while event is not None:
        names.append(event.name)
        event = event.cpu_parent
    return names
