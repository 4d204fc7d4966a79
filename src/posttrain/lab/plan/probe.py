"""What this machine really reaches: products, memory, and a real step of a small model with random weights.

    calibration = probe(config)      measures and saves it; later plans on this machine use it

Nothing of the run is read but its config: the model is one of the same widths with fewer layers and tokens, filled with
random numbers, its prompts are random characters and its reward is a length. The step is `posttrain train`'s own.
"""

from __future__ import annotations

import io
import json
import random
import string
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

from posttrain.config import RunConfig, check, load_config, to_yaml
from posttrain.lab.plan.api import Plan, plan_for
from posttrain.lab.plan.architecture import Architecture
from posttrain.lab.plan.before_run import target_here
from posttrain.lab.plan.cost import Work
from posttrain.lab.plan.phases import predict
from posttrain.lab.plan.records import MemoryPlan, Workload
from posttrain.lab.plan.target import EXACT, Calibration, Target, apply_to, processor, save
from posttrain.lab.plan.timing import StepCost, cost_of_step
from posttrain.lab.plan.verdict import size
from posttrain.lab.plan.workload import model_architecture, workload_of
from posttrain.models.compute import dtype_name, has_bfloat16
from posttrain.models.load import choose_device, hold_to_quota
from posttrain.report.svg import compact, percent
from posttrain.report.terminal import TerminalView
from posttrain.store.run_store import RunStore
from posttrain.tasks.tiny import BOS_ID, EOS_ID, PAD_ID, build_tokenizer
from posttrain.train import api
from posttrain.train.setup import set_up

MOST_COMPUTE = 1.5
"""Of the products that were measured: those of a processor go through a library that may be faster still."""
LEAST_COMPUTING = 0.3
"""Share of a training step that computes at least, whatever starting its layers seems to take."""


@dataclass(frozen=True, kw_only=True)
class Probed:
    """A plan before and after the machine was measured."""

    before: Plan
    after: Plan
    calibration: Calibration
    predicted: Mapping[str, float]
    """Of the small step: seconds of generate and train, bytes."""
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
        """What was measured, then the corrected plan."""
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
    """Measure this machine for this config, keep what was found, and plan again with it.

    `target` says how else it is planned to run: price, lengths, who samples. Its hardware is that of this machine.
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
    """Operations and bytes per second, medians of a few products and copies."""
    size_ = 1024 if device.type == "cpu" else 8192
    numbers = 2**24 if device.type == "cpu" else 2**28
    rates: dict[str, Any] = {}
    for dtype in (torch.float32, torch.bfloat16):
        a = torch.ones(size_, size_, dtype=dtype, device=device)
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
    """What was measured of a step with random weights."""

    workload: Workload
    seconds: Mapping[str, float]
    """Of generate and train."""
    bytes: int
    """Of tensors at the worst moment."""


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
            prompt_tokens=PROMPT,
            completion_tokens=ANSWER,
        )
        seconds = {"generate": row["time/sample"], "train": row["time/train"]}
        return SmallStep(workload=workload, seconds=seconds, bytes=_most_alive(small, Path(place) / "weighed", device))


@contextmanager
def _run(config: RunConfig, folder: Path) -> Iterator[Any]:
    resolved = load_config(config, {"output": str(folder)})
    with ExitStack() as resources, RunStore.create(folder, to_yaml(resolved)) as store:
        yield set_up(resolved, store, TerminalView(io.StringIO()), resources)


def _most_alive(config: RunConfig, folder: Path, device: torch.device) -> int:
    """Bytes of tensors at the worst moment of a run of two steps, its loading included."""
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
    """What a layer's call takes, from decoding, where there is little else; then the share of products in training."""
    generate, train = (sum((p.work for p in cost.parts if p.phase == phase), Work()) for phase in ("generate", "train"))
    rate = (small.workload.precision == "bfloat16" and rates["bfloat16"]) or rates["float32"]
    busy = max(generate.flops / rate, generate.bytes / rates["bandwidth"])
    call = max(0.0, (small.seconds["generate"] - busy) / generate.layer_calls)
    computing = max(small.seconds["train"] - train.layer_calls * call, LEAST_COMPUTING * small.seconds["train"])
    return {"layer_call": call, "compute": min(MOST_COMPUTE, max(0.01, train.flops / rate / computing))}


def _memory_factor(memory: MemoryPlan, measured: int) -> float:
    """Of what is not exactly known; within a factor of two."""
    exact = sum(part.bytes for part in memory.peak.parts if part.what in EXACT)
    guessed = memory.peak.bytes - exact
    return min(2.0, max(0.5, (measured - exact) / guessed)) if guessed > 0 else 1.0


# --- the small run ---------------------------------------------------------------------------------------------------


LARGEST = {"cpu": 30_000_000, "cuda": 1_000_000_000}
"""Parameters of the model that stands for the real one."""
TOKENS = {"cpu": 4096, "cuda": 32_000}
"""Of its vocabulary."""
PROMPT, ANSWER, PROMPTS, GROUP = 64, 64, 4, 4
ROWS = 32
"""Prompts that there are, some of them held out: steps take others each time."""


def small_config(config: RunConfig, folder: Path, device: torch.device) -> RunConfig:
    """GRPO with the adapters, the checkpointing and the precision of the config, on random characters."""
    build_model(model_architecture(config.model.path), folder / "model", device)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in _rows()))
    (folder / "reward.py").write_text("def length(prompt, completion, **row):\n    return float(len(completion) % 7)\n")
    chunk = config.train.logprob_chunk_tokens
    made = load_config(
        {
            "model": {
                "path": str(folder / "model"),
                "device": device.type,
                "precision": config.model.precision,
                "attention": config.model.attention,
            },
            "algorithm": "grpo",
            "data": {"train": str(folder / "rows.jsonl"), "chat": False},
            "rewards": [{"function": f"{folder / 'reward.py'}:length"}],
            "sampling": {"group_size": GROUP, "max_completion_length": ANSWER},
            "train": {
                "steps": 2,
                "prompts_per_step": PROMPTS,
                "tokens_per_microbatch": min(config.train.tokens_per_microbatch, 1024),
                "logprob_chunk_tokens": chunk,
                "gradient_checkpointing": config.train.gradient_checkpointing,
            },
            "evaluation": {"prompts": 1, "samples": 0},
            "report": False,
            **({"lora": {"rank": config.lora.rank}} if config.lora is not None else {}),
        }
    ).config
    check(made)
    return made


def _rows() -> Iterator[dict[str, str]]:
    draw = random.Random(0)
    for _ in range(ROWS):  # a first token stands before each
        yield {"prompt": "".join(draw.choice(string.ascii_lowercase) for _ in range(PROMPT - 1))}


def build_model(like: Architecture, folder: Path, device: torch.device) -> None:
    """A Llama of the same widths, with as many of its layers as there is room for, and random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = build_tokenizer()
    width, layers, heads, kv_heads, mlp = like.hidden, like.layers, like.heads, like.kv_heads, _mlp_width(like)
    vocabulary = max(len(tokenizer), min(like.vocabulary, TOKENS[device.type]))
    layer = 2 * width * like.key_width * (heads + kv_heads) + 3 * width * mlp
    while vocabulary * width + layers * layer > LARGEST[device.type] and (layers > 1 or heads % 2 == 0):
        if layers > 1:
            layers = layers // 2
            continue
        width, heads, kv_heads, mlp = width // 2, heads // 2, max(1, kv_heads // 2), mlp // 2
        layer = 2 * width * like.key_width * (heads + kv_heads) + 3 * width * mlp
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=like.key_width,
        vocab_size=vocabulary,
        tie_word_embeddings=like.tied,
        max_position_embeddings=PROMPT + ANSWER,
        pad_token_id=PAD_ID,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _mlp_width(like: Architecture) -> int:
    """Of a mixture: what one token passes of it."""
    _, block = like.blocks[-1]
    mixture = block.mixture
    return like.mlp_width if mixture is None else mixture.per_token * mixture.width
