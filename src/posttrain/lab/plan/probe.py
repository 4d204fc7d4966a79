"""Measures the performance of this machine: products, memory, and a real step of a small model with random weights.

    calibration = probe(config)      measures and saves it; later plans on this machine use it

The probe reads only the config of the run. Its model has the same widths, fewer layers and random weights; its prompts
are random characters, and its reward is a length. The step is that of `posttrain train`.
"""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from posttrain.config import RunConfig, load_config, to_yaml
from posttrain.lab.plan.api import Plan, plan_for
from posttrain.lab.plan.before_run import target_here
from posttrain.lab.plan.cost import Work
from posttrain.lab.plan.phases import predict
from posttrain.lab.plan.records import MemoryPlan, Workload
from posttrain.lab.plan.stand_in import SIZES, small_config
from posttrain.lab.plan.target import EXACT, Calibration, Target, apply_to, processor, save
from posttrain.lab.plan.timing import StepCost, cost_of_step
from posttrain.lab.plan.verdict import size
from posttrain.lab.plan.workload import workload_of
from posttrain.models.compute import dtype_name, has_bfloat16
from posttrain.models.load import choose_device, hold_to_quota
from posttrain.report.svg import compact, percent
from posttrain.report.terminal import TerminalView
from posttrain.store.run_store import RunStore
from posttrain.train import api
from posttrain.train.setup import set_up

MOST_COMPUTE = 1.5
"""Upper limit of the compute share. It may exceed 1, because training may use a faster library on a processor."""
LEAST_COMPUTING = 0.3
"""Minimum share of a training step that computes, however long its layer calls seem to take."""


@dataclass(frozen=True, kw_only=True)
class Probed:
    """A plan before and after the machine was measured."""

    before: Plan
    after: Plan
    calibration: Calibration
    predicted: Mapping[str, float]
    """The prediction for the small step: seconds of generate and train, bytes."""
    measured: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        return {
            **self.after.to_json(),
            "probe": {
                "calibration": vars(self.calibration),
                "predicted": dict(self.predicted),
                "measured": dict(self.measured),
                "before": {"seconds": self.before.run_seconds, "needed_bytes": self.before.verdict.needed},
            },
        }

    def render(self) -> str:
        """Return the measurements and the corrected plan as text."""
        told, found = self.predicted, self.measured
        c = self.calibration
        half = f", bfloat16 {compact(c.bfloat16)}FLOP/s" if c.bfloat16 else ""
        lines = [
            f"Probe    {c.what}, {c.machine}",
            f"         products float32 {compact(c.float32)}FLOP/s{half}; memory {size(c.bandwidth)}/s",
            *(
                f"         {name}: predicted {told[name]:.3f} s, measured {found[name]:.3f} s"
                for name in ("generate", "train")
            ),
            f"         memory: predicted {size(told['bytes'])}, measured {size(found['bytes'])} "
            f"({percent(found['bytes'] / told['bytes'] - 1)})",
            f"         so training reaches {percent(c.compute)} of the products, and a layer takes at least "
            f"{1e6 * c.layer_call:.0f} µs",
            f"         before: {self.before.line()}",
            f"         after:  {self.after.line()}",
        ]
        return "\n".join(lines) + "\n\n" + self.after.render()


def probe_and_plan(config: RunConfig, target: Target | None = None) -> Probed:
    """Measure this machine for this config, save the measurements, and plan again with them.

    `target` gives the other inputs of the plan: price, lengths, samplers. Its hardware is replaced by this machine.
    """
    here = target_here(config)
    before = plan_for(config, here if target is None else replace(target, hardware=here.hardware))
    device = choose_device(config.model.device)
    hold_to_quota()
    rates, small = _rates(device), _small_step(config, device)
    cost, memory = cost_of_step(small.workload, before.hardware), predict(small.workload)
    calibration = Calibration(
        machine=processor() if device.type == "cpu" else torch.cuda.get_device_name(device),
        date=datetime.now(UTC).date().isoformat(),
        what=f"a model of {compact(small.workload.architecture.parameters)} random weights",
        **rates,
        **_shares(small, cost, rates),
        memory=_memory_factor(memory, small.bytes),
    )
    save(calibration)
    after = plan_for(config, replace(before.target, hardware=apply_to(before.hardware, calibration)))
    told = {"generate": cost.of("generate"), "train": cost.of("train"), "bytes": memory.bytes}
    found = {**small.seconds, "bytes": small.bytes}
    return Probed(before=before, after=after, calibration=calibration, predicted=told, measured=found)


# --- rates -----------------------------------------------------------------------------------------------------------


def _rates(device: torch.device) -> dict[str, Any]:
    """Measure operations and bytes per second: medians of a few products and copies."""
    size_ = 1024 if device.type == "cpu" else 8192
    numbers = 2**24 if device.type == "cpu" else 2**28
    rates: dict[str, Any] = {}
    for dtype in (torch.float32, torch.bfloat16):
        a = torch.randn(size_, size_, device=device).to(dtype)  # constant numbers would run faster than in any training
        rates[dtype_name(dtype)] = 2 * size_**3 / _median_seconds(lambda a=a: a @ a, device)
    if device.type == "cpu" and not has_bfloat16():
        rates["bfloat16"] = None
    source, target = torch.ones(numbers, device=device), torch.empty(numbers, device=device)
    rates["bandwidth"] = 2 * source.nbytes / _median_seconds(lambda: target.copy_(source), device)
    return rates


def _median_seconds(work: Callable[[], object], device: torch.device, tries: int = 5) -> float:
    def once() -> float:
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    once()
    return median(once() for _ in range(tries))


# --- a real step -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SmallStep:
    """The measurements of a step with random weights."""

    workload: Workload
    seconds: Mapping[str, float]
    """Seconds of generate and train."""
    bytes: int
    """Peak bytes of tensors."""


def _small_step(config: RunConfig, device: torch.device) -> SmallStep:
    with tempfile.TemporaryDirectory(prefix="posttrain-probe-") as place:
        small = small_config(config, Path(place), device)
        with _run(small, Path(place) / "timed") as run:
            api.one_step(run)
            api.one_step(run)
            row = run.store.read_metrics()[-1]
            computing = run.trainer.loaded.compute
        workload = workload_of(
            small,
            device="cpu" if device.type == "cpu" else "cuda",
            computing=computing,
            prompt_tokens=SIZES[device.type].prompt,
            completion_tokens=SIZES[device.type].answer,
        )
        seconds = {"generate": row["time/sample"], "train": row["time/train"]}
        return SmallStep(workload=workload, seconds=seconds, bytes=_most_alive(small, Path(place) / "weighed", device))


@contextmanager
def _run(config: RunConfig, folder: Path) -> Iterator[Any]:
    resolved = load_config(config, {"output": str(folder)})
    with ExitStack() as resources, RunStore.create(folder, to_yaml(resolved)) as store:
        yield set_up(resolved, store, TerminalView(io.StringIO()), resources)


def _most_alive(config: RunConfig, folder: Path, device: torch.device) -> int:
    """Measure the peak bytes of tensors in a run of two steps, including its loading."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        with _run(config, folder) as run:
            api.one_step(run)
            api.one_step(run)
        return torch.cuda.max_memory_allocated(device) - before
    seen = [ProfilerActivity.CPU]
    with profile(activities=seen, profile_memory=True, acc_events=False) as profiler, _run(config, folder) as run:
        api.one_step(run)
        api.one_step(run)
    events = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")  # type: ignore[attr-defined]
    return max(accumulate((size_ for _, size_ in changes), initial=0))


# --- from seconds to shares -------------------------------------------------------------------------------------------


def _shares(small: SmallStep, cost: StepCost, rates: Mapping[str, Any]) -> dict[str, float]:
    """Return the time of a layer call, from decoding, where it dominates, and then the compute share of training."""
    generate, train = (sum((p.work for p in cost.parts if p.phase == phase), Work()) for phase in ("generate", "train"))
    rate = (small.workload.precision == "bfloat16" and rates["bfloat16"]) or rates["float32"]
    busy = max(generate.flops / rate, generate.bytes / rates["bandwidth"])
    call = max(0.0, (small.seconds["generate"] - busy) / generate.layer_calls)
    computing = max(small.seconds["train"] - train.layer_calls * call, LEAST_COMPUTING * small.seconds["train"])
    return {"layer_call": call, "compute": min(MOST_COMPUTE, max(0.01, train.flops / rate / computing))}


def _memory_factor(memory: MemoryPlan, measured: int) -> float:
    """Return the ratio of measured to predicted bytes for the parts not known exactly, between 0.5 and 2."""
    exact = sum(part.bytes for part in memory.peak.parts if part.what in EXACT)
    guessed = memory.peak.bytes - exact
    return min(2.0, max(0.5, (measured - exact) / guessed)) if guessed > 0 else 1.0
