"""Runs whose turns are requested by an agent that uses the `openai` package."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from tests.episodes.talkers import talker

import posttrain

AGENT = Path(__file__).with_name("openai_agents.py")


def config(folder: Path, **train: Any) -> dict[str, Any]:
    if not (folder / "model").exists():
        talker(folder / "model")
        rows = [{"prompt": letter} for letter in "abcdefgh"]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "model": {"path": str(folder / "model"), "device": "cpu"},
        "algorithm": "grpo",
        "data": {"train": str(folder / "rows.jsonl"), "eval_fraction": 0},
        "agent": {"function": f"{AGENT}:with_a_tool"},
        "rewards": [{"name": "agent", "settings": {"when_cut": 0.0}}],
        "sampling": {"group_size": 8, "max_completion_length": 8, "max_turns": 2},
        "train": {"steps": 20, "prompts_per_step": 4, "learning_rate": 1e-2, **train},
        "checkpoint": {"every": 0},
        "guards": {"max_truncated": 1.0},
        "output": str(folder / "run"),
        "report": False,
    }


def drawn_ids(row: dict[str, Any]) -> list[int]:
    given = {place for begin, end in row["given"] or () for place in range(begin, end)}
    return [token for place, token in enumerate(row["completion_ids"]) if place not in given]


@pytest.fixture(autouse=True)
def _openai() -> None:
    pytest.importorskip("openai", reason="the package openai (extra dev) is not installed")


@pytest.mark.slow
def test_an_agent_that_knows_nothing_of_us_learns_in_20_steps(tmp_path: Path):
    """The run trains the sampled tokens: trainer and sampler report the same log-probabilities."""
    run = posttrain.train(config(tmp_path))
    rewards = [line["reward"] for line in run.metrics]
    print("reward", [round(reward, 2) for reward in rewards])
    assert len(rewards) == 20
    assert statistics.mean(rewards[:3]) <= 0.4
    assert statistics.mean(rewards[-5:]) >= 0.8
    assert run.metrics[-1]["tools/calls/look"] >= 0.8
    assert {line["turns/contexts"] for line in run.metrics} == {1.0}
    assert max(line["mismatch/abs_max"] for line in run.metrics) < 1e-4
    for step in (1, 20):
        rows = parquet.read_table(Path(run.folder) / "rollouts" / f"step-{step:06}.parquet").to_pylist()
        assert all(len(drawn_ids(row)) == len(row["logprobs"]) for row in rows)
        assert any(row["given"] for row in rows)


@pytest.mark.slow
def test_a_run_of_an_agent_goes_on_bit_for_bit(tmp_path: Path):
    """Resumed after its first step, it makes the same second step as an uninterrupted run."""
    given = config(tmp_path, steps=2, schedule="constant", warmup_steps=0) | {"checkpoint": {"every": 1}}
    whole = posttrain.train(given)
    part = posttrain.train(given | {"output": str(tmp_path / "part"), "train": {**given["train"], "steps": 1}})
    again = posttrain.resume(part.folder, steps=2)
    tables = [parquet.read_table(Path(run.folder) / "rollouts" / "step-000002.parquet") for run in (whole, again)]
    rows = [table.drop_columns(["reward/agent/seconds"]).to_pylist() for table in tables]
    assert rows[0] == rows[1]
    weights = [next(Path(run.model_path).glob("*.safetensors")).read_bytes() for run in (whole, again)]  # type: ignore[arg-type]
    assert weights[0] == weights[1]
