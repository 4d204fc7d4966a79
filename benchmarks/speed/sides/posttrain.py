"""posttrain as a user runs it: `posttrain.train` on a config; `settings` are set in it by their dotted names.

The view of a run is told of every finished step, and there the turn is taken. Completion lengths are forced from
outside: the end of the sequence is never drawn before its place, and at its place a random number beyond 1 asks for it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from benchmarks.speed.gate import Gate
from benchmarks.speed.workload import GROUP_SIZE, read

import posttrain as pt
from posttrain.config import load_config, to_yaml
from posttrain.report.terminal import TerminalView
from posttrain.rollout import sampling
from posttrain.rollout.local import LocalSampler
from posttrain.train.loop import train_step
from posttrain.train.run import Run
from posttrain.train.setup import set_up
from posttrain.train.store import RunStore
from posttrain.types import Completion

ENDS = 2.0
"""In place of a uniform number: the sequence ends here."""


class Turns(TerminalView):
    """Ends every step at the gate, with the numbers that every side reports."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(sys.stderr)
        self.gate = gate

    def step(self, metrics: Mapping[str, Any], total: int) -> None:
        super().step(metrics, total)
        times = {name: value for name, value in metrics.items() if name.startswith("time/")}
        self.gate.turn(**{name: metrics[name] for name in ("loss", "grad_norm") if name in metrics}, **times)


def grpo(folder: Path, settings: dict[str, Any], gate: Gate) -> None:
    """GRPO steps without end: all prompts of the workload in every step."""
    force_lengths(read(folder)["lengths"], gate)
    pt.train(_config(folder, _grpo(folder) | settings), view=Turns(gate))


def grpo_check(folder: Path, settings: dict[str, Any], gate: Gate) -> None:
    """One GRPO step on given completions: its loss and the norm of its gradient."""
    _sample_given(read(folder)["given"])
    pt.train(_config(folder, _grpo(folder) | settings), view=Turns(gate))


def dpo(folder: Path, settings: dict[str, Any], gate: Gate) -> None:
    """DPO steps without end, each over all pairs of the workload."""
    pt.train(_config(folder, _rows(folder / "pairs.jsonl", "dpo") | settings), view=Turns(gate))


def sft(folder: Path, settings: dict[str, Any], gate: Gate) -> None:
    """SFT steps without end, each over all examples of the workload."""
    pt.train(_config(folder, _rows(folder / "examples.jsonl", "sft") | settings), view=Turns(gate))


def sampling_alone(folder: Path, settings: dict[str, Any], gate: Gate) -> None:
    """All completions of a step, with the sampler that a run has."""
    force_lengths(read(folder)["lengths"], gate)
    with _prepared(folder, _grpo(folder) | settings) as run:
        for seed in range(1000):
            groups = run.feed.sampler.generate(run.feed.prompts, run.config.sampling, group_size=GROUP_SIZE, seed=seed)
            gate.turn(tokens=sum(len(completion.ids) for group in groups for completion in group))


def training_pass(folder: Path, settings: dict[str, Any], gate: Gate) -> None:
    """`train_step` on the experience of one step, taken once: forward, backward and optimizer."""
    for run, experience in trained_experience(folder, settings):
        for step in range(1, 1000):
            train_step(run, experience, step)
            gate.turn()


def trained_experience(folder: Path, settings: dict[str, Any]) -> Iterator[tuple[Run, Any]]:
    """A run and what its first step learns from; the run is closed afterwards."""
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
        "train.prompts_per_step": 8,
        "guards.max_truncated": 1.0,
    }


def _rows(path: Path, algorithm: str) -> dict[str, Any]:
    rows = len(path.read_text().splitlines())
    return {"algorithm": algorithm, "data.train": str(path), "data.eval": str(path), "train.prompts_per_step": rows}


def _config(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """A run on the workload in `folder`, with as little beside its steps as can be configured."""
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
    """Sections from dotted names.

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
    """A run that is set up and has not begun."""
    resolved = load_config(_config(folder, settings), {})
    with RunStore.create(Path(str(resolved.config.output)), to_yaml(resolved)) as store, ExitStack() as resources:
        yield set_up(resolved, store, TerminalView(sys.stderr, quiet=True), resources)


def force_lengths(lengths: list[list[int]], gate: Gate) -> None:
    """Completion g of prompt i ends after `lengths[i][g]` tokens, neither earlier nor later."""
    choose, uniform_streams = sampling.choose, sampling.uniform_streams

    def streams(seed: int, rows: list[tuple[int, int]], length: int) -> torch.Tensor:
        uniforms_BT2 = uniform_streams(seed, rows, length)
        for row, (index, g) in enumerate(rows):
            end = gate.lengths(lengths[index % len(lengths)])[g % GROUP_SIZE]
            uniforms_BT2[row, end - 1 :, 0] = ENDS
        return uniforms_BT2

    def ending(logits_BV: torch.Tensor, settings: Any, uniforms_B2: torch.Tensor | None, eos_id: int = 2) -> Any:
        if uniforms_B2 is None:
            return choose(logits_BV, settings, None)
        ends_B = uniforms_B2[:, 0] == ENDS
        scored_B = sampling.token_logprobs(logits_BV[ends_B], torch.full((int(ends_B.sum()),), eos_id), temperature=1.0)
        logits_BV[:, eos_id] = -torch.inf
        ids_B, logprobs_B = choose(logits_BV, settings, uniforms_B2.where(~ends_B[:, None], 0.5))
        ids_B[ends_B], logprobs_B[ends_B] = eos_id, scored_B
        return ids_B, logprobs_B

    _replace("choose", choose, ending)
    _replace("uniform_streams", uniform_streams, streams)


def _replace(name: str, function: Callable[..., Any], by: Callable[..., Any]) -> None:
    """In every module of the sampler that has imported it."""
    for module in [module for key, module in sys.modules.items() if key.startswith("posttrain.rollout")]:
        if getattr(module, name, None) is function:
            setattr(module, name, by)


def _sample_given(given: list[list[list[int]]]) -> None:
    """The sampler gives these completions, with the log-probabilities that it finds for them."""

    def generate(
        self: LocalSampler, prompts: Any, settings: Any, *, group_size: int, seed: int
    ) -> list[list[Completion]]:
        return [
            [_completion(self, prompt.ids, ids) for ids in given[prompt.index % len(given)][:group_size]]
            for prompt in prompts
        ]

    LocalSampler.generate = generate
    if hasattr(LocalSampler, "stream"):
        LocalSampler.stream = lambda self, prompts, settings, **more: enumerate(  # type: ignore[attr-defined]
            generate(self, prompts, settings, **more)
        )


def _completion(sampler: LocalSampler, prompt: tuple[int, ...], ids: list[int]) -> Completion:
    (logprobs,) = sampler.score([prompt], [ids], temperature=1.0)
    text = sampler.tokenizer.decode(ids, skip_special_tokens=True)
    versions = (sampler.version,) * len(ids)
    return Completion(ids=tuple(ids), logprobs=tuple(logprobs), versions=versions, finish_reason="length", text=text)
