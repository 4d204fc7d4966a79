"""Whole runs on a card: sampling, resuming, and memory."""

from __future__ import annotations

import gc
import json
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.golden.runs import recipe, write_inputs
from tests.gpu.devices import CARD, DEVICES, PRECISIONS, SLOW_OFF_CARD, held_bytes, in_precisions
from tests.tiny import tiny_model, write_prompts

import posttrain as pt
from posttrain.config import load_config, to_yaml
from posttrain.engine_environment import installed
from posttrain.report.store import read_rollouts
from posttrain.report.terminal import TerminalView
from posttrain.store.run_store import RunStore
from posttrain.train import api
from posttrain.train.setup import set_up

MISMATCH = {"float32": 1e-3, "bfloat16": 0.5}
"""Largest difference of a token's log-probability between sampler and trainer, in nats; for models like these, a token
has some 3 nats."""
RESUMED = {"float32": 1e-4, "bfloat16": 2e-2}
"""Largest relative difference of the gradient's norm after a checkpoint, if sums have no fixed order."""
LEAK = 2**14 / 45
"""Bytes by which memory may grow per step: over the 45 steps after the fifth of a run on a card, a fifth of the model's
bytes."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A model with heads of width 64, as servers need, whose next tokens differ clearly in likelihood."""
    folder = tmp_path_factory.mktemp("runs")
    shape = {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 2, "head_dim": 64}
    tiny_model(folder / "model", initializer_range=0.15, max_position_embeddings=256, **shape)
    write_prompts(folder / "prompts.jsonl", count=64)
    return folder


def config(folder: Path, output: Path, device: str, precision: str = "float32", **changes: Any) -> dict[str, Any]:
    return {
        "model": {"path": str(folder / "model"), "device": device, "precision": precision},
        "algorithm": "grpo",
        "data": {"train": str(folder / "prompts.jsonl"), "eval_fraction": 0.25},
        "rewards": [{"name": "repetition", "settings": {"n": 1}}],
        "sampling": {"group_size": 4, "max_completion_length": 12},
        "train": {"steps": 2, "prompts_per_step": 4, "learning_rate": 1e-3},
        "evaluation": {"prompts": 16, "samples": 0, "writing": 0},
        "guards": {"max_truncated": 1.0},
        "report": False,
        "output": str(output),
        **changes,
    }


def greedy(run: Path, when: str) -> list[list[int]]:
    lines = (run / "evaluations" / f"{when}.jsonl").read_text().splitlines()
    return [json.loads(line)["greedy"]["ids"] for line in lines]


@pytest.mark.parametrize(("device", "precision"), in_precisions(DEVICES))
def test_the_sampler_says_of_its_tokens_what_the_trainer_says(folder, tmp_path, device, precision):
    few = {"prompts": 4, "samples": 0, "writing": 0}
    run = pt.train(config(folder, tmp_path / "run", device, precision, evaluation=few))
    assert [step["mismatch/abs_max"] <= MISMATCH[precision] for step in run.metrics] == [True, True]
    assert run.metrics[-1]["grad_norm"] > 0


@pytest.mark.parametrize("device", SLOW_OFF_CARD)
def test_greedy_answers_are_those_of_the_processor_until_rounding_chooses(folder, tmp_path, device):
    """If two tokens are almost equally likely, another order of sums may choose the other, and the answers then
    diverge."""
    train = {"steps": 1, "prompts_per_step": 4}
    found, expected = (
        pt.train(config(folder, tmp_path / name, on, train=train)) for name, on in (("here", device), ("there", "cpu"))
    )
    pairs = list(zip(greedy(found.folder, "baseline"), greedy(expected.folder, "baseline"), strict=True))
    assert len(pairs) == 16
    assert len({tuple(ids) for ids, _ in pairs}) > 4, "the answers differ from each other"
    assert sum(ours == theirs for ours, theirs in pairs) >= 14


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("device", SLOW_OFF_CARD)
def test_a_resumed_run_is_the_run_that_was_not_stopped(folder, tmp_path, device, precision):
    """Both continue one checkpoint, because two runs on a card diverge at their first update (docs/gpu.md): bit by bit
    equal on the processor; on a card the next step has the same tokens, and a gradient within `RESUMED`."""
    train = {"steps": 4, "prompts_per_step": 4, "learning_rate": 1e-3}
    whole = pt.train(config(folder, tmp_path / "whole", device, precision, train=train, checkpoint={"every": 2}))
    stopped = shutil.copytree(whole.folder, tmp_path / "parts")
    shutil.rmtree(stopped / "checkpoints" / "step-000004")
    parts = pt.resume(stopped, steps=4)
    ours, theirs = records(parts.folder), records(whole.folder)
    assert len(ours) == len(theirs) == 4
    if device == "cpu":
        assert ours == theirs
        saved = [run.folder / "checkpoints/step-000004/model/model.safetensors" for run in (parts, whole)]
        assert saved[0].read_bytes() == saved[1].read_bytes()
    assert len(drawn(parts.folder, 3)) == 16
    assert drawn(parts.folder, 3) == drawn(whole.folder, 3)
    assert ours[2]["grad_norm"] == pytest.approx(theirs[2]["grad_norm"], rel=RESUMED[precision])


def drawn(run: Path, step: int) -> list[list[int]]:
    return [row["completion_ids"] for row in read_rollouts(run, step)]


def records(run: Path) -> list[dict[str, float]]:
    """The metrics that do not depend on the clock."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: row[name] for name in row if not name.startswith(("time/", "memory/"))} for row in rows]


@pytest.fixture
def little_to_look_at() -> None:
    """Take what exists out of the garbage collector's sight: a count of tensors then looks at the new ones only."""
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("little_to_look_at")
@pytest.mark.parametrize(("device", "steps"), [("cpu", 6), pytest.param("cuda", 50, marks=CARD.marks)])
def test_fifty_steps_hold_no_more_than_five_and_nothing_is_left(tmp_path, device, steps):
    """On the processor six steps. A first run allocates the memory that libraries keep, such as cuBLAS's
    workspace."""
    folder = write_inputs(tmp_path)
    held_after_each_step(folder, tmp_path / "first", device, 1)
    before = held_bytes(device)
    held, weights = held_after_each_step(folder, tmp_path / "second", device, steps)
    assert held[4] > before + 2 * weights, "the count includes policy, reference, critic and their optimizers"
    assert held[-1] <= held[4] + LEAK * (steps - 5)
    assert held_bytes(device) <= before + LEAK * steps


def held_after_each_step(folder: Path, output: Path, device: str, steps: int) -> tuple[list[int], int]:
    """Bytes after each step of PPO, and the bytes of the policy's weights."""
    guards = {"guards.max_truncated": 1.0, "guards.no_signal_steps": 100}
    settings = {"model.device": device, "train.steps": steps, **guards}
    resolved, held = load_config(recipe(folder, "ppo") | {"output": str(output)}, settings), list[int]()
    with RunStore.create(output, to_yaml(resolved)) as store, ExitStack() as resources:
        run = set_up(resolved, store, TerminalView(quiet=True), resources)
        for _ in range(steps):
            api.one_step(run)
            held.append(held_bytes(device))
        return held, sum(parameter.nbytes for parameter in run.trainer.loaded.model.parameters())


@pytest.mark.vllm
@pytest.mark.skipif(not installed(), reason="vLLM is not installed: posttrain engine install vllm")
@pytest.mark.parametrize("device", DEVICES)
def test_a_server_beside_the_trainer_draws_what_the_local_sampler_draws(folder, tmp_path, device):
    """On a card, trainer and server share the memory of one card."""
    served = pt.train(config(folder, tmp_path / "served", device, rollout={"engine": "vllm", "deadline": 120}))
    here = pt.train(config(folder, tmp_path / "here", device))
    pairs = list(zip(greedy(served.folder, "baseline"), greedy(here.folder, "baseline"), strict=True))
    assert sum(ours == theirs for ours, theirs in pairs) >= 14
    for step in served.metrics[:-1]:
        assert step["mismatch/abs_max"] < 1e-2
        assert step["publish/probe_max_difference"] < 1e-2


@pytest.mark.usefixtures("little_to_look_at")
def test_a_card_that_is_asked_for_counts_what_is_held():
    """A test of the counter itself, on the devices of this machine."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    before = held_bytes(device)
    kept = torch.zeros(2**20, device=device)
    assert held_bytes(device) - before == 4 * 2**20
    assert kept.sum() == 0
