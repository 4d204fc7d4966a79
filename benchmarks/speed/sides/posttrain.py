"""posttrain as a user runs it: `posttrain.train` on a config, with `settings` by their dotted names.

The view of a run is called after every step, and takes the turn there. Completion lengths are forced from outside:
every request gets its own length, and no token ends it earlier.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.speed.gate import Gate
from benchmarks.speed.workload import GROUP_SIZE, read

import posttrain as pt
from posttrain.config import load_config, to_yaml
from posttrain.engines.engine import Request
from posttrain.engines.local import LocalSampler
from posttrain.engines.port import Task
from posttrain.engines.vllm.port import VllmEngine
from posttrain.report.terminal import TerminalView
from posttrain.store.run_store import RunStore
from posttrain.train.loop import train_step
from posttrain.train.run import Run
from posttrain.train.setup import set_up
from posttrain.types import Completion, Prompt


class Turns(TerminalView):
    """A view that ends every step at the gate, with the numbers that every side reports."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(sys.stderr)
        self.gate = gate

    def step(self, metrics: Mapping[str, Any], total: int) -> None:
        super().step(metrics, total)
        times = {name: value for name, value in metrics.items() if name.startswith("time/")}
        self.gate.turn(**{name: metrics[name] for name in ("loss", "grad_norm") if name in metrics}, **times)


def trained(config: dict[str, Any], gate: Gate) -> None:
    """Train without end. Each report includes the predictions of the run's plan, which is read from the run folder."""
    view, plan = Turns(gate), Path(config["output"]) / "plan.json"
    turn = gate.turn

    def planned(**facts: Any) -> None:
        told = json.loads(plan.read_text()) if plan.exists() else None
        if told is not None:
            most = max(phase["bytes"] for phase in told["memory"].values())
            facts |= {"planned_bytes": most, "planned_seconds": told["step"]["seconds"]}
        turn(**facts)

    gate.turn = planned
    pt.train(config, view=view)


def grpo(folder: Path, settings: dict[str, Any], gate: Gate) -> None:
    """Do GRPO steps without end, each over all prompts of the workload."""
    force_lengths(read(folder)["lengths"], gate)
    force_served_lengths(read(folder)["lengths"], gate)
    trained(_config(folder, _grpo(folder) | settings), gate)


def grpo_check(folder: Path, settings: dict[str, Any], gate: Gate) -> None:
    """Do one GRPO step on given completions, for its loss and gradient norm."""
    _sample_given(read(folder)["given"])
    pt.train(_config(folder, _grpo(folder) | settings), view=Turns(gate))


def dpo(folder: Path, settings: dict[str, Any], gate: Gate) -> None:
    """Do DPO steps without end, each over all pairs of the workload."""
    trained(_config(folder, _rows(folder / "pairs.jsonl", "dpo") | settings), gate)


def sft(folder: Path, settings: dict[str, Any], gate: Gate) -> None:
    """Do SFT steps without end, each over all examples of the workload."""
    trained(_config(folder, _rows(folder / "examples.jsonl", "sft") | settings), gate)


def sampling_alone(folder: Path, settings: dict[str, Any], gate: Gate) -> None:
    """Sample all completions of a step, with the sampler of a run."""
    force_lengths(read(folder)["lengths"], gate)
    with _prepared(folder, _grpo(folder) | settings) as run:
        for seed in range(1000):
            groups = run.feed.generator.sampler.generate(
                run.feed.rows, run.config.sampling, group_size=GROUP_SIZE, seed=seed
            )
            gate.turn(tokens=sum(len(completion.ids) for group in groups for completion in group))


def training_pass(folder: Path, settings: dict[str, Any], gate: Gate) -> None:
    """Do `train_step` repeatedly on the experience of one step: forward, backward and optimizer."""
    for run, experience in trained_experience(folder, settings):
        for step in range(1, 1000):
            train_step(run.trainer, experience, step)
            gate.turn()


def trained_experience(folder: Path, settings: dict[str, Any]) -> Iterator[tuple[Run, Any]]:
    """Yield a run and the experience of its first step. The run is closed afterwards."""
    _sample_given(read(folder)["given"])
    with _prepared(folder, _grpo(folder) | settings) as run:
        run.evaluation = {}
        yield run, run.feed.take(1, 0).experience


def _grpo(folder: Path) -> dict[str, Any]:
    return {
        "algorithm": "grpo",
        "data.train": str(folder / "prompts.jsonl"),
        "data.eval": str(folder / "prompts.jsonl"),
        "rewards": [{"function": f"{folder / 'reward.py'}:reward"}],
        "sampling.group_size": GROUP_SIZE,
        "train.prompts_per_step": len(read(folder)["lengths"]),
        "guards.max_truncated": 1.0,
    }


def _rows(path: Path, algorithm: str) -> dict[str, Any]:
    rows = len(path.read_text().splitlines())
    return {"algorithm": algorithm, "data.train": str(path), "data.eval": str(path), "train.prompts_per_step": rows}


def _config(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The config of a run on the workload in `folder`, with as little work besides its steps as possible."""
    longest = max(map(max, read(folder)["lengths"]))
    lora = settings.pop("lora", None)
    common = {
        "model.path": str(folder / "model"),
        "output": tempfile.mkdtemp(prefix="posttrain-") + "/run",
        "sampling.max_completion_length": longest,
        "train.steps": 1000,
        "train.learning_rate": 1e-6,
        "evaluation.prompts": 1,
        "evaluation.samples": 0,
        "checkpoint.every": 0,
        "report": False,
    }
    own = {"lora.rank": lora, "lora.alpha": 2 * lora} if lora else {}
    return nested(common | settings | own)


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The config with sections, from settings with dotted names.

    >>> nested({"seed": 1, "train.steps": 5, "train.epochs": 2})
    {'seed': 1, 'train': {'steps': 5, 'epochs': 2}}
    """
    config: dict[str, Any] = {}
    for name, value in settings.items():
        section, _, setting = name.rpartition(".")
        (config.setdefault(section, {}) if section else config)[setting] = value
    return config


@contextmanager
def _prepared(folder: Path, settings: dict[str, Any]) -> Iterator[Run]:
    """A run that is set up but has not begun."""
    resolved = load_config(_config(folder, settings), {})
    with RunStore.create(Path(str(resolved.config.output)), to_yaml(resolved)) as store, ExitStack() as resources:
        yield set_up(resolved, store, TerminalView(sys.stderr, quiet=True), resources)


def force_lengths(lengths: list[list[int]], gate: Gate) -> None:
    """Make completion g of prompt i exactly `lengths[i][g]` tokens long."""
    complete = LocalSampler.complete

    def forced(self: LocalSampler, requests: Sequence[Request], sampling: Any, *, seed: int) -> Any:
        self.eos_ids = frozenset()
        places = [(index % len(lengths), g) for index, g in (request.stream for request in requests)]
        ends = [gate.lengths(lengths[i])[g] for i, g in places]
        changed = [replace(request, max_new_tokens=n) for request, n in zip(requests, ends, strict=True)]
        return complete(self, changed, sampling, seed=seed)

    LocalSampler.complete = forced


def force_served_lengths(lengths: list[list[int]], gate: Gate) -> None:
    """Force the lengths on a vLLM server. Its work while this side waits for its turn would not be measured. So a step
    ends when its weights are proven, and the next completions are requested only when the turn has come."""
    submit, turn, engines, here = VllmEngine.submit, gate.turn, set[VllmEngine](), threading.Event()
    here.set()

    def in_turn(**facts: Any) -> None:
        while any(engine._weights.locked() for engine in engines):
            time.sleep(0.002)
        here.clear()
        turn(**facts)
        here.set()

    def forced(self: VllmEngine, tasks: Sequence[Task]) -> None:
        here.wait()
        engines.add(self)
        self.setup = replace(self.setup, eos_ids=())
        places = [(index % len(lengths), g) for index, g in (task.stream for task in tasks)]
        ends = [gate.lengths(lengths[i])[g] for i, g in places]
        submit(self, [replace(task, max_new_tokens=n) for task, n in zip(tasks, ends, strict=True)])

    VllmEngine.submit, gate.turn = forced, in_turn


def _sample_given(given: list[list[list[int]]]) -> None:
    """Make the sampler return these completions, with the log-probabilities that it computes for them."""

    def each(
        self: LocalSampler, prompts: Sequence[Prompt], sampling: Any, *, group_size: int, seed: int
    ) -> Iterator[tuple[int, int, Completion]]:
        for place, prompt in enumerate(prompts):
            for g, ids in enumerate(given[prompt.index % len(given)][:group_size]):
                yield place, g, _completion(self, prompt.ids, ids)

    LocalSampler.each = each


def _completion(sampler: LocalSampler, prompt: tuple[int, ...], ids: list[int]) -> Completion:
    (logprobs,) = sampler.score([prompt], [ids], temperature=1.0)
    text = str(sampler.tokenizer.decode(ids, skip_special_tokens=True))
    versions = (sampler.version,) * len(ids)
    return Completion(ids=tuple(ids), logprobs=tuple(logprobs), versions=versions, finish_reason="length", text=text)
