"""Trajectories that a real vLLM server draws, with real tools. Run by `make test-vllm`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
import torch
from tests.episodes.talkers import WORDS, WORLDS, tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

import posttrain as pt
from posttrain.engine_environment import installed

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not installed(), reason="vLLM is not installed: posttrain engine install vllm"),
]
SERVED = {"engine": "vllm", "deadline": 120}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A random model that often calls tools, because a call is one of its words, with heads that vLLM supports."""
    folder = tmp_path_factory.mktemp("turns")
    shape = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    torch.manual_seed(11)
    sizes: dict[str, Any] = shape | ids
    config = LlamaConfig(**sizes, head_dim=64, vocab_size=len(WORDS), max_position_embeddings=256)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(std=0.15)
    model.save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    rows = [{"prompt": letter} for letter in "abcdefgh" * 12]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def config(place: Path, name: str, **changes: Any) -> dict[str, Any]:
    return {
        "model": {"path": str(place / "model"), "device": "cpu", "precision": "float32"},
        "algorithm": "grpo",
        "data": {"train": str(place / "rows.jsonl"), "eval_fraction": 0.2},
        "tools": [f"{WORLDS}:look"],
        "rewards": [{"name": "repetition", "settings": {"n": 1}}],
        "sampling": {"group_size": 4, "max_completion_length": 24, "max_turns": 4, "max_trajectory_length": 160},
        "train": {"steps": 3, "prompts_per_step": 4, "learning_rate": 1e-3},
        "evaluation": {"prompts": 16, "samples": 0, "writing": 0},
        "guards": {"max_truncated": 1.0},
        "report": False,
        "output": str(place / name),
        **changes,
    }


def rows_of(run: pt.Run) -> list[dict[str, Any]]:
    files = sorted((Path(run.folder) / "rollouts").glob("step-*.parquet"))
    return [row for file in files for row in parquet.read_table(file).to_pylist()]


def greedy(run: pt.Run, when: str) -> list[Any]:
    lines = (Path(run.folder) / "evaluations" / f"{when}.jsonl").read_text().splitlines()
    return [json.loads(line)["greedy"]["ids"] for line in lines]


def test_a_server_draws_turns_whose_greedy_tokens_are_those_of_the_local_sampler(place: Path):
    """Proven weights draw the trained tokens; tools answer between the turns, and their tokens are context."""
    served, here = pt.train(config(place, "served", rollout=SERVED)), pt.train(config(place, "here"))
    assert any(len(ids) > 24 for ids in greedy(here, "baseline")), "some trajectories have several turns"
    assert greedy(served, "baseline") == greedy(here, "baseline")
    for line in served.metrics:
        assert line["turns/mean"] > 1
        assert line["tools/calls/look"] > 0
        assert line["mismatch/abs_max"] < 1e-3
    rows = rows_of(served)
    assert len(rows) == 3 * 4 * 4
    assert any(row["given"] for row in rows)
    for row in rows:
        given = sum(end - begin for begin, end in row["given"] or ())
        assert len(row["logprobs"]) == len(row["versions"]) == len(row["completion_ids"]) - given
        assert set(row["versions"]) == {row["step"] - 1}


def test_a_run_in_turns_is_evaluated_by_a_server(place: Path):
    """Without a run, the server gives the same answers as this process."""
    run = pt.train(config(place, "evaluated", train={"steps": 1, "prompts_per_step": 4}))
    assert pt.evaluate(run.folder, rollout=SERVED).mean_length == pt.evaluate(run.folder).mean_length


def test_sampled_ahead_turns_of_one_trajectory_have_versions_of_their_own(place: Path):
    given = {"function": f"{WORLDS}:Guess", "settings": {"pause": 0.3}}
    changes: dict[str, Any] = {"rollout": SERVED, "tools": [], "environment": given, "rewards": ["environment"]}
    rows = [{"prompt": letter, "secret": letter} for letter in "abcdefgh" * 12]
    (place / "guesses.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes |= {"data": {"train": str(place / "guesses.jsonl"), "eval_fraction": 0.2}}
    ahead = {"train.run_ahead": 2, "train.max_staleness": 8, "train.steps": 6}
    run = pt.train(config(place, "ahead", **changes), **ahead)
    trained = rows_of(run)
    assert len({row["prompt_index"] for row in trained}) == 6 * 4
    assert any(len(set(row["versions"])) > 1 for row in trained)
    assert all(row["versions"] == sorted(row["versions"]) for row in trained)
