"""The planner's predictions for runs whose throughput others have published (rows.yaml)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from posttrain.lab.plan.architecture import Architecture, architecture_of
from posttrain.lab.plan.hardware import Hardware, find_hardware
from posttrain.lab.plan.mesh import data_group
from posttrain.lab.plan.records import Workload
from posttrain.lab.plan.timing import StepCost, cost_of_step

ROWS = Path(__file__).with_name("rows.yaml")


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One published number, and the planner's prediction for the same run."""

    source: str
    fitted: bool
    """Whether the planner's efficiencies were fitted on this number."""
    row: Mapping[str, Any]
    workload: Workload
    hardware: Hardware
    cost: StepCost
    published: float
    """Published throughput, in tokens per second and GPU."""

    @property
    def grpo(self) -> bool:
        """Whether a step samples, scores and trains; otherwise it only trains."""
        return "grpo" in self.row

    @property
    def predicted(self) -> float:
        return self.workload.rows * self.row["tokens"] / self.workload.ranks / self.cost.seconds

    @property
    def error(self) -> float:
        """Relative error of the prediction: +10% means 10% more tokens than published."""
        return self.predicted / self.published - 1

    @property
    def waiting(self) -> float:
        """Share of the step in which, by the plan, devices wait for each other."""
        return sum(part.waiting for part in self.cost.parts) / self.cost.seconds


def compare(**shares: float) -> list[Compared]:
    """Compare all rows, with the planner's efficiencies, or with `shares` in their place."""
    told = yaml.safe_load(ROWS.read_text(encoding="utf-8"))
    return [_compared(told["models"], source, row, shares) for source in told["sources"] for row in source["measured"]]


def fitted_compute() -> float:
    """The share of the peak rate for which the median error of the fitted rows is 0, to two digits."""
    low, high = 0.1, 0.9
    while high - low > 1e-4:
        middle = (low + high) / 2
        too_slow = median(one.error for one in compare(compute=middle) if one.fitted) < 0
        low, high = (middle, high) if too_slow else (low, middle)
    return round((low + high) / 2, 2)


def medians(found: list[Compared]) -> Iterator[tuple[str, int, float, float]]:
    """Yield (name of the rows, their number, median and largest absolute error)."""
    training = [one for one in found if not one.grpo]
    for name, rows in (
        ("fitted", [one for one in training if one.fitted]),
        ("checked", [one for one in training if not one.fitted]),
        ("GRPO, checked", [one for one in found if one.grpo]),
    ):
        errors = [abs(one.error) for one in rows]
        yield name, len(errors), median(errors), max(errors)


def _compared(models: Mapping[str, Any], source: Mapping[str, Any], row: Mapping[str, Any], shares: Any) -> Compared:
    both = {"node": 8, "tensor": 1, "sharding": "full", "reduced": "float32", "compiled": False, **source, **row}
    hardware = replace(find_hardware(both["gpus"]), node=both["node"])
    if "network" in both:
        hardware = replace(hardware, device=replace(hardware.device, network=1e9 * both["network"]))
    hardware = replace(hardware, efficiency=replace(hardware.efficiency, **shares))
    shape = {"tie_word_embeddings": both["model"].startswith("mpt"), **models[both["model"]]}
    architecture = architecture_of(shape, name=both["model"])
    workload = (_grpo if "grpo" in both else _training)(architecture, both, hardware)
    return Compared(
        source=source["title"],
        fitted=source["use"] == "fitted",
        row=both,
        workload=workload,
        hardware=hardware,
        cost=cost_of_step(workload, hardware),
        published=row["tokens_per_second"],
    )


def _training(architecture: Architecture, row: Mapping[str, Any], hardware: Hardware) -> Workload:
    """The workload of a pre-training row: all tokens except the first are trained."""
    alone = Workload(
        algorithm="sft",
        needs=frozenset(),
        data_kind="examples",
        prompt_tokens=1,
        completion_tokens=row["tokens"] - 1,
        tokens_per_microbatch=row["rows"] * row["tokens"],
        **_both(architecture, row, hardware),
    )
    return replace(alone, prompts_per_step=row["rows"] * row["passes"] * data_group(alone).ranks)


def _grpo(architecture: Architecture, row: Mapping[str, Any], hardware: Hardware) -> Workload:
    """The workload of a GRPO row: answers of the mean length, from engines on as many GPUs as train."""
    told = row["grpo"]
    return Workload(
        algorithm="grpo",
        needs=frozenset({"reference"}),
        old_pass=True,
        prompts_per_step=told["prompts"],
        group_size=told["group"],
        prompt_tokens=told["prompt"],
        completion_tokens=told["limit"] - told["prompt"],
        mean_completion_tokens=row["tokens"] - told["prompt"],
        minibatches=told["updates"],
        tokens_per_microbatch=told["limit"],
        max_batch_rows=256,
        engine="separate",
        engine_ranks=hardware.count,
        engine_tensor=row["engine"],
        **_both(architecture, row, hardware),
    )


def _both(architecture: Architecture, row: Mapping[str, Any], hardware: Hardware) -> dict[str, Any]:
    return {
        "architecture": architecture,
        "device": "cuda",
        "precision": "bfloat16",
        "gradient_checkpointing": row["again"],
        "ranks": hardware.count,
        "node": hardware.node,
        "sharding": row["sharding"] if hardware.count > 1 else "none",
        "reduced": row["reduced"],
        "gathered": "bfloat16",  # all of them use mixed precision
        "tensor": row["tensor"],
    }
