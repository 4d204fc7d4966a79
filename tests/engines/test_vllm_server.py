"""Runs that sample from a real vLLM server: the same greedy tokens, proven weights, and a server that is killed.

Run by `make test-vllm`. Models are random, with the head size that vLLM's CPU build has attention for (64).
"""

from __future__ import annotations

import json
import os
import signal
import string
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
import torch
from tests.processes import Command
from tests.tiny import tiny_tokenizer, write_prompts
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    OlmoeConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

import posttrain as pt
from posttrain.engine_environment import installed
from posttrain.engines.vllm.server import PROGRAM
from posttrain.engines.vllm.sleeping import SharedDevice
from posttrain.errors import EngineError
from posttrain.train import fleet

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not installed(), reason="vLLM is not installed: posttrain engine install vllm"),
]
SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 256,
}
MODELS: dict[str, type[PretrainedConfig]] = {
    "llama": LlamaConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "gemma2": Gemma2Config,
    "gemma3": Gemma3TextConfig,
    "qwen2_moe": Qwen2MoeConfig,
    "qwen3_moe": Qwen3MoeConfig,
    "olmoe": OlmoeConfig,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2}
NO_HEAD_DIM = {"hidden_size": 256}
"""Models whose head size follows from their width."""
DIFFERENT: dict[str, dict[str, int]] = {
    "qwen2": NO_HEAD_DIM,
    "qwen2_moe": EXPERTS | NO_HEAD_DIM | {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 128},
    "qwen3_moe": EXPERTS | {"moe_intermediate_size": 64},
    "olmoe": EXPERTS | NO_HEAD_DIM | {"intermediate_size": 64, "num_key_value_heads": 4},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    write_prompts(folder / "prompts.jsonl", count=200)
    return folder


def model(place: Path, kind: str, *, tied: bool = True) -> Path:
    """A random model whose next tokens differ clearly in likelihood."""
    folder = place / f"{kind} {tied}"
    if folder.exists():
        return folder
    tokenizer = tiny_tokenizer(string.ascii_lowercase + string.digits + " ")
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")}
    config = MODELS[kind](**SHAPE | DIFFERENT.get(kind, {}) | ids, vocab_size=len(tokenizer), tie_word_embeddings=tied)
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(std=0.15)
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def config(place: Path, name: str, path: Path, **changes):
    return {
        "model": {"path": str(path), "device": "cpu", "precision": "float32"},
        "algorithm": "grpo",
        "data": {"train": str(place / "prompts.jsonl"), "eval_fraction": 0.4},
        "rewards": [{"name": "repetition", "settings": {"n": 1}}],
        "sampling": {"group_size": 4, "max_completion_length": 24},
        "train": {"steps": 3, "prompts_per_step": 4, "learning_rate": 1e-3},
        "evaluation": {"prompts": 64, "samples": 0, "writing": 0},
        "guards": {"max_truncated": 1.0},
        "report": False,
        "output": str(place / name),
        **changes,
    }


def greedy(run: Path, when: str) -> list[list[int]]:
    lines = (run / "evaluations" / f"{when}.jsonl").read_text().splitlines()
    return [json.loads(line)["greedy"]["ids"] for line in lines]


def steps_of(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


def servers() -> list[psutil.Process]:
    return [one for one in psutil.process_iter(["cmdline"]) if PROGRAM in (one.info["cmdline"] or ())]


@pytest.mark.parametrize(
    ("kind", "tied"), [*((kind, True) for kind in MODELS), ("llama", False), ("qwen3", False)], ids=str
)
def test_greedy_tokens_are_those_of_the_local_sampler_before_and_after_training(place, kind, tied):
    path = model(place, kind, tied=tied)
    name = f"{kind} {'tied' if tied else 'untied'}"
    served = pt.train(config(place, f"served {name}", path, rollout={"engine": "vllm", "deadline": 120}))
    assert servers() == []
    here = pt.train(config(place, f"here {name}", path))
    assert len(greedy(here.folder, "baseline")) == 64
    assert greedy(served.folder, "baseline") == greedy(here.folder, "baseline")
    assert greedy(served.folder, "trained") != greedy(served.folder, "baseline"), "the model was trained"
    for step in served.metrics[:-1]:
        assert step["mismatch/abs_max"] < 1e-3
        assert step["publish/probe_max_difference"] < 1e-3
        assert step["publish/tensors_compared"] >= 3 * 9


def test_log_probabilities_are_those_of_the_temperature(place):
    path = model(place, "llama")
    changes = {"rollout": {"engine": "vllm", "deadline": 120}}
    run = pt.train(config(place, "warm", path, **changes), **{"sampling.temperature": 0.6, "lora.rank": 4})
    assert all(step["mismatch/abs_max"] < 1e-3 for step in run.metrics)


def test_a_cpu_build_cannot_sleep_and_says_so_before_anything_is_sampled(place, monkeypatch):
    """The server answers /sleep with 200 and then reports that it sleeps, so a trainer must not trust it."""
    path, folder = model(place, "llama"), place / "sleeps"
    monkeypatch.setattr(fleet, "shared_device", lambda *of: SharedDevice("cpu", lambda: 0))
    with pytest.raises(EngineError):
        pt.train(config(place, folder.name, path, rollout={"engine": "vllm", "deadline": 120}))
    messages = [json.loads(line)["message"] for line in (folder / "events.jsonl").read_text().splitlines()]
    assert any("it shares the trainer's GPU and cannot sleep: start it with --enable-sleep-mode" in m for m in messages)


def test_on_a_cpu_a_shared_placement_changes_nothing(place):
    path = model(place, "llama")
    rollout = {"engine": "vllm", "deadline": 120, "placement": "shared"}
    run = pt.train(config(place, "shared", path, rollout=rollout), **{"train.steps": 2, "evaluation.prompts": 4})
    assert all(step["mismatch/abs_max"] < 1e-3 for step in run.metrics)
    assert all("queue/gave_back_gib" not in step for step in run.metrics)


def test_a_killed_and_a_hung_server_are_replaced_and_every_prompt_is_trained_once(place):
    path, folder, sent = model(place, "llama"), place / "killed", list[int]()

    def kill() -> None:
        for after, number in ((3, signal.SIGKILL), (9, signal.SIGSTOP)):
            while steps_of(folder) < after:
                time.sleep(0.05)
            while not servers():
                time.sleep(0.05)
            os.kill(max(one.pid for one in servers()), number)  # not its supervisor
            sent.append(number)

    threading.Thread(target=kill, daemon=True).start()
    changes = {"rollout": {"engine": "vllm", "deadline": 15}, "evaluation": {"prompts": 4, "samples": 0, "writing": 0}}
    ahead = {"train.steps": 24, "train.run_ahead": 2, "train.max_staleness": 8}
    run = pt.train(config(place, "killed", path, **changes), **ahead)
    assert sent == [signal.SIGKILL, signal.SIGSTOP]
    assert servers() == []
    messages = [json.loads(line)["message"] for line in (run.folder / "events.jsonl").read_text().splitlines()]
    assert sum("is lost: killed by signal 9 (Killed)" in text for text in messages) == 1
    assert sum("is late" in text or "no answer within 15 s" in text for text in messages) == 1
    files = sorted((run.folder / "rollouts").glob("step-*.parquet"))
    rows = [row for file in files for row in pq.read_table(file, columns=["step", "group", "prompt_index"]).to_pylist()]
    prompts = [prompt for _, prompt in {(row["step"], row["group"]): row["prompt_index"] for row in rows}.items()]
    assert len(prompts) == len(set(prompts)) == 24 * 4


def test_nothing_of_a_server_outlives_a_trainer_that_was_killed(place):
    path, folder = model(place, "llama"), place / "outlived"
    settings = config(place, folder.name, path, rollout={"engine": "vllm", "deadline": 60})
    settings["train"] |= {"steps": 10_000}
    (place / "long.yaml").write_text(json.dumps(settings))
    process = Command("train", "long.yaml", cwd=place)
    while steps_of(folder) < 2:
        assert process.returncode is None
        time.sleep(0.1)
    groups = {os.getpgid(one.pid) for one in servers()}
    assert len(members(groups)) >= 4, "supervisor, server, core and worker"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    until = time.monotonic() + 20
    while members(groups) and time.monotonic() < until:
        time.sleep(0.1)
    assert members(groups) == []


def members(groups: set[int]) -> list[int]:
    found = []
    for one in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if os.getpgid(one.pid) in groups and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one.pid)
    return found
