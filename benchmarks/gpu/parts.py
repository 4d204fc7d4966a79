"""The parts of the measurement, most important first, and their time limits.

Each side is alone on the GPU: with two models and a server's cache on it, neither would have as much memory as in
practice. So the sides do not take turns, and changes of the GPU's clock rate are not averaged out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu import work
from benchmarks.gpu.budget import Part, Until
from benchmarks.speed import workload
from benchmarks.speed.rounds import LATE, PEERS, ROOT, Side, SideFailed, Worker, interpreter, ratio, summary

from posttrain.engine_environment import installed

ROUNDS = 5
"""Largest number of measured steps of a side, after one warm-up step."""
FIRST = (("sft", "1.5b"), ("grpo", "1.5b"), ("dpo", "1.5b"), ("sampling", "1.5b"))
"""The parts for the goals."""
THEN = tuple((task, model) for model in ("0.5b", "3b") for task in ("grpo", "sft", "dpo", "sampling"))
SECONDS = {"rates": 30, "calibration": 60, "sft": 90, "dpo": 100, "grpo": 300, "sampling": 110}
"""Time limit of each part on a GPU, in seconds. It includes writing the model and starting servers. vLLM compiles and
captures its graphs for about a minute."""
SHARE = 0.6
"""Share of a part's remaining time that a side may take. The last side may take all of it."""
MICROBATCH = {"0.5b": 16_384, "1.5b": 8192, "3b": 4096, "tiny": 256}
"""Our train.tokens_per_microbatch, chosen for a GPU with 80 GB."""

OURS, OURS_VLLM, TRL, TRL_BEST = "posttrain", "posttrain with vLLM", "TRL", "TRL best"
BEST = {"gradient_checkpointing": False, "per_device_train_batch_size": 16, "model_init_kwargs": {"dtype": "bfloat16"}}
"""The fastest settings in TRL's documentation: no recomputation, more rows at a time, and weights in bfloat16."""
TASKS = {"sft": {"padding_free": True}, "dpo": {"precompute_ref_log_probs": True}, "grpo": {}}
"""Further settings that make one of TRL's trainers faster. The reference model of DPO is then not part of a step."""


@dataclass(frozen=True)
class Place:
    """The working folder and the device of the measurement."""

    folder: Path
    """Folder for models, prompts and logs."""
    device: str

    def workload(self, model: str, until: Until) -> Path:
        """Write a workload in a separate process, so that no GPU memory stays in use. Raises SideFailed."""
        done = in_a_process("benchmarks.gpu.work", [str(self.folder), model, self.device], until)
        assert done == ""
        return work.write(self.folder, model, self.device)


def parts(place: Place, models: Sequence[str], calibration: Path | None) -> list[Part]:
    """All parts for these models. `calibration` is a second file for the result of the planner's probe, if any."""
    known = [*FIRST, *THEN, *((task, "tiny") for task in ("sft", "grpo", "dpo", "sampling"))]
    measured = [
        Part(name=f"{task} {model}", seconds=seconds_of(task, model), measure=part_of(place, task, model))
        for task, model in known
        if model in models
    ]
    first = Part(name="rates", seconds=SECONDS["rates"], measure=lambda until: rates(place, until))
    model = "1.5b" if "1.5b" in models else models[0]
    probe = Part(
        name="calibration",
        seconds=seconds_of("calibration", model),
        measure=lambda until: calibrated(place, model, calibration, until),
    )
    return [first, *measured[: len(FIRST)], probe, *measured[len(FIRST) :]]


def seconds_of(task: str, model: str) -> float:
    """The time limit of a part, in seconds; always 120 for the tiny model, which tests the harness on busy machines."""
    return 120 if model == "tiny" else SECONDS[task]


def part_of(place: Place, task: str, model: str) -> Callable[[Until], dict[str, Any]]:
    def measure(until: Until) -> dict[str, Any]:
        folder = place.workload(model, until)
        told = workload.read(folder)
        sides = samplers(place.device) if task == "sampling" else trainers(task, model, place.device)
        found = one_after_the_other(sides, folder, until)
        return {
            "task": task,
            "model": told["model"],
            "tokens": told["tokens"],
            "flops": None if task == "sampling" else work.step_flops(task, told),
            "sides": found,
            "ratios": ratios(found),
        }

    return measure


def trainers(task: str, model: str, device: str) -> list[Side]:
    """The sides of a training task, ours first: if a part is cut short, our figures can be compared between runs."""
    on_card = device == "cuda"

    def ours(name: str, **settings: Any) -> Side:
        common = {"model.device": device, "train.tokens_per_microbatch": MICROBATCH[model]}
        return Side(name=name, side="posttrain", task=task, settings=common | settings, device=device)

    def trl(name: str, settings: dict[str, Any]) -> Side:
        where = {"use_cpu": not on_card}
        if task == "grpo" and on_card:
            where |= {"use_vllm": True, "vllm_mode": "colocate"}
        return Side(name=name, side="trl", task=task, settings=where | settings, device=device)

    served = [ours(OURS_VLLM, **{"rollout.engine": "vllm"})] if task == "grpo" and on_card else []
    if served and not installed():
        served = []
    best = BEST | TASKS[task] if on_card else {"gradient_checkpointing": False}
    return [ours(OURS), trl(TRL, {}), *served, trl(TRL_BEST, best)]


def samplers(device: str) -> list[Side]:
    """The sides that only sample the completions of a step."""
    ours = {"model.device": device, "model.precision": "bfloat16" if device == "cuda" else "float32"}
    sides = [Side(name=OURS, side="posttrain", task="sampling_alone", settings=ours, device=device)]
    if device == "cuda":
        sides.append(
            Side(name="vLLM", side="vllm", task="sampling_alone", settings={"dtype": "bfloat16"}, device=device)
        )
    return sides


def one_after_the_other(sides: Sequence[Side], folder: Path, until: Until) -> dict[str, dict[str, Any]]:
    """Measure the sides one after the other, and return the figures of each by name. A side that fails gives the
    reason. A side whose library is missing takes no time."""
    (folder / "logs").mkdir(exist_ok=True)
    found: dict[str, dict[str, Any]] = {side.name: {"failed": why} for side in sides if (why := missing(side))}
    there = [side for side in sides if side.name not in found]
    for side in there:
        log = folder / "logs" / f"{side.task}-{side.name.replace(' ', '-')}.log"
        share = 1.0 if side is there[-1] else SHARE
        found[side.name] = alone(side, folder, log, Until.after(share * until.left))
    return found


def missing(side: Side) -> str:
    """Reason why a side cannot be measured at all; empty if it can."""
    try:
        interpreter(side.side)
    except SideFailed as reason:
        return str(reason)
    return ""


def alone(side: Side, folder: Path, log: Path, until: Until) -> dict[str, Any]:
    """Measure steps of one side until there is no time for another one. A side that is cut short keeps its steps."""
    steps: list[dict[str, Any]] = []
    reason = ""
    try:
        worker = Worker(side, folder, log, seconds=until.left)
    except (SideFailed, OSError) as error:
        return {"failed": str(error)}
    try:
        while len(steps) < ROUNDS and until.left > (1.5 * steps[-1]["seconds"] if steps else 0):
            steps.append(worker.step())
    except (SideFailed, OSError) as error:
        reason = str(error)
    finally:
        worker.close()
    reason = reason or ("" if steps else LATE)
    return (summary(steps) if steps else {}) | ({"failed": reason} if reason else {})


def ratios(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Speed of each of our sides relative to each of the others."""
    ours = [name for name in found if name.startswith(OURS)]
    return {
        f"{our} / {their}": ratio(found[our], found[their])
        for our in ours
        for their in found
        if their not in ours and "seconds" in found[our] and "seconds" in found[their]
    }


def rates(place: Place, until: Until) -> dict[str, Any]:
    return json.loads(in_a_process("benchmarks.gpu.rates", [place.device], until))


def calibrated(place: Place, model: str, file: Path | None, until: Until) -> dict[str, Any]:
    """Run the planner's probe. On a GPU, plans on this machine use the result from now on. On a CPU it stays in the
    folder of this measurement."""
    folder = place.workload(model, until) / "model"
    more = [] if file is None else [str(file)]
    own = {"POSTTRAIN_CACHE": str(place.folder / "cache")} if place.device == "cpu" else {}
    return json.loads(in_a_process("benchmarks.gpu.calibration", [str(folder), place.device, *more], until, own))


def in_a_process(module: str, arguments: Sequence[str], until: Until, more: Mapping[str, str] | None = None) -> str:
    """Run a module with `more` environment variables, and return the last line that it prints. Raises SideFailed if it
    fails or takes too long."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env=os.environ | dict(more or {}),
            capture_output=True,
            text=True,
            timeout=until.left,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SideFailed(f"{module}: {LATE}") from None
    if done.returncode:
        raise SideFailed(f"{module}: {' '.join(done.stderr.split()[-40:])}")
    return (done.stdout.strip().splitlines() or [""])[-1]


def peers() -> dict[str, str]:
    """The other libraries that can be measured, with their versions. The sides report missing ones."""
    found = {}
    for name in dict.fromkeys(PEERS.values()):
        if f"POSTTRAIN_BENCH_{name.upper()}" in os.environ:
            asked = [interpreter(name), "-c", f"from importlib.metadata import version; print(version({name!r}))"]
            done = subprocess.run(asked, capture_output=True, text=True, check=False)
            found[name] = done.stdout.strip() or "broken"
    return found
