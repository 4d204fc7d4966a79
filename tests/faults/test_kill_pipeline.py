"""A pipeline that is killed in a stage, or between two stages, and resumed equals an uninterrupted pipeline."""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.faults import pipeline_driver
from tests.processes import Ended, run_alone, run_anew
from tests.tiny import tiny_model, write_prompts

import posttrain

STAGES = ("01-sft", "02-rm", "03-ppo")
KILLS = (
    ("01-sft", "3"), ("01-sft", "end"), ("02-rm", "1"), ("03-ppo", "2"), ("03-ppo", "end"), ("export", "end"),
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipeline")
    tiny_model(folder / "model")
    prompts = write_prompts(folder / "prompts.jsonl", count=24)
    rows = [json.loads(line) for line in prompts.read_text().splitlines()]
    examples = [{"prompt": row["prompt"], "completion": row["answer"]} for row in rows]
    pairs = [{"prompt": row["prompt"], "chosen": row["answer"], "rejected": row["answer"][::-1] + "z"} for row in rows]
    for name, content in (("examples", examples), ("pairs", pairs)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))
    return folder


def write_pipeline(folder: Path, name: str) -> Path:
    shared = {
        "model": {"path": str(folder / "model"), "device": "cpu"},
        "sampling": {"group_size": 2, "max_completion_length": 6},
        "evaluation": {"writing": 0, "prompts": 2, "samples": 0},
        "checkpoint": {"every": 2, "keep": 2},
        "guards": {"max_truncated": 1.0},
        "output": str(folder / name),
        "export": {"to": "hf"},
        "report": False,
    }
    train = {"steps": 4, "prompts_per_step": 4, "learning_rate": 1e-3}
    stages = [
        {"algorithm": "sft", "data": {"train": str(folder / "examples.jsonl")}, "train": train},
        {"name": "rm", "algorithm": "reward_model", "data": {"train": str(folder / "pairs.jsonl")}, "train": train},
        {
            "algorithm": "ppo",
            "data": {"train": str(folder / "prompts.jsonl")},
            "rewards": [{"model": "stage:rm"}],
            "critic": {"path": "stage:rm"},
            "train": {**train, "learning_rate": 1e-4, "minibatches": 2},
        },
    ]
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**shared, "stages": stages}))
    return path


def drive(verb: str, target: Path, *when: str, run: Callable[..., Ended] = run_alone) -> int:
    ended = run(pipeline_driver.drive, verb, str(target), *when)
    assert ended.exit_code in (0, -signal.SIGKILL), ended.errors
    return ended.exit_code


def weights(run: Path) -> dict[str, str]:
    """The content of all files in the last checkpoint that name no folder."""
    files = [path for path in sorted((run / "checkpoints" / "step-000004").rglob("*")) if path.is_file()]
    assert files, f"{run} has no last checkpoint"
    named = {str(path.relative_to(run)): path for path in files if "manifest" not in path.name}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in named.items()}


def exported(pipeline: Path) -> dict[str, bytes]:
    files = [path for path in sorted((pipeline / "export").iterdir()) if path.is_file() and path.suffix != ".md"]
    assert "model.safetensors" in {path.name for path in files}
    return {path.name: path.read_bytes() for path in files}


def records(run: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "memory/"))} for row in rows]


@pytest.fixture(scope="module")
def whole(folder) -> Path:
    posttrain.train(write_pipeline(folder, "whole"))
    return folder / "whole"


@pytest.mark.slow
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param((("02-rm", "1"), ("export", "end")), id="in a stage and after the export"),
        pytest.param(KILLS, id="everywhere"),
    ],
)
def test_kills_in_stages_and_between_them_change_no_bit(folder, whole, kills):
    killed = folder / f"killed-{len(kills)}"
    verb, target = "train", write_pipeline(folder, killed.name)
    for when in kills:
        assert drive(verb, target, *when) == -signal.SIGKILL, when
        verb, target = "resume", killed
    times = modified(killed)
    assert drive("resume", killed, run=run_anew) == 0
    assert modified(killed) == times, "a finished stage was trained again"
    for stage in STAGES:
        assert weights(killed / stage) == weights(whole / stage)
        assert records(killed / stage) == records(whole / stage)
        ours, theirs = (
            json.loads((pipeline / "handover" / f"{stage}.json").read_text()) for pipeline in (killed, whole)
        )
        assert ours == theirs
    progress = json.loads((killed / "pipeline.json").read_text())
    assert [entry["status"] for entry in progress["stages"]] == ["finished"] * 3
    assert progress["status"] == "finished"
    assert exported(killed) == exported(whole)


def modified(pipeline: Path) -> list[int]:
    return [(pipeline / stage / "metrics.jsonl").stat().st_mtime_ns for stage in STAGES]
