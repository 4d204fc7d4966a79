"""Promise 4: a run that is killed at any moment and resumed equals an uninterrupted run, bit for bit (CPU)."""

from __future__ import annotations

import hashlib
import json
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.faults import kill_driver
from tests.processes import Ended, run_alone, run_anew
from tests.tiny import tiny_model, write_prompts

LATEST = {"sample": 3, "update": 4, "save": 2}
"""The highest count of a phase at which the kill may come: small enough that a run lasts until its last kill."""

REWARD = '''
def vowels(prompt, completion, **row):
    """A reward that varies, so that every step has a gradient."""
    return sum(letter in "aeiou" for letter in completion) / 8
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kill")
    tiny_model(folder / "model")
    write_prompts(folder / "prompts.jsonl", count=24)
    (folder / "rewards.py").write_text(REWARD)
    return folder


def write_config(folder: Path, name: str, algorithm: str, steps: int) -> Path:
    config = {
        "model": str(folder / "model"),
        "algorithm": algorithm,
        "data": {"train": str(folder / "prompts.jsonl")},
        "rewards": [{"function": f"{folder / 'rewards.py'}:vowels"}],
        "sampling": {"group_size": 4, "max_completion_length": 8},
        "train": {"steps": steps, "prompts_per_step": 4, "learning_rate": 1e-3, "minibatches": 2},
        "lora": {"rank": 4, "dropout": 0.1} if name.startswith("lora") else None,
        "evaluation": {"writing": 0, "prompts": 2, "samples": 1},
        "checkpoint": {"every": 1, "keep": 2},
        "guards": {"max_truncated": 1.0},
        "output": str(folder / name),
        "report": False,
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def drive(verb: str, target: Path, *when: object, run: Callable[..., Ended] = run_alone) -> int:
    ended = run(kill_driver.drive, verb, str(target), *map(str, when))
    assert ended.exit_code in (0, -signal.SIGKILL), ended.errors
    return ended.exit_code


def weights(run: Path, steps: int) -> dict[str, str]:
    """The content of all files that the next step depends on."""
    files = sorted((run / "checkpoints" / f"step-{steps:06d}").rglob("*"))
    assert files, f"{run} has no last checkpoint"
    named = {str(path.relative_to(run)): path for path in files if path.is_file() and "manifest" not in path.name}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in named.items()}


def records(run: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "memory/"))} for row in rows]


def run_here(function: Callable[..., None], *arguments: str) -> Ended:
    """Call the function in this process, whose hash seed is not that of the forked processes either."""
    function(*arguments)
    return Ended(exit_code=0, errors="")


def kill_and_compare(
    folder: Path, name: str, algorithm: str, *, kills: int, steps: int, seed: int, last: Callable[..., Ended] = run_anew
) -> None:
    drive("train", write_config(folder, f"{name}-whole", algorithm, steps))
    config = write_config(folder, f"{name}-killed", algorithm, steps)
    dice = random.Random(seed)
    phases = [("sample", "update", "save")[number % 3] for number in range(kills)]
    killed = 0
    for number, phase in enumerate(phases):
        verb, target = ("train", config) if number == 0 else ("resume", folder / f"{name}-killed")
        count = dice.randint(1, LATEST[phase])
        killed += drive(verb, target, phase, count, dice.uniform(0, 0.03)) == -signal.SIGKILL
    assert killed == kills, "a kill came too late to hit its phase"
    checkpoints = (folder / f"{name}-killed" / "checkpoints").glob("step-*/manifest.json")
    assert any(path.parent.name > "step-000000" for path in checkpoints), "the last resume begins before any update"
    drive("resume", folder / f"{name}-killed", run=last)
    assert weights(folder / f"{name}-killed", steps) == weights(folder / f"{name}-whole", steps)
    assert records(folder / f"{name}-killed") == records(folder / f"{name}-whole")


def test_kills_while_it_samples_and_while_it_updates_change_no_bit(folder):
    kill_and_compare(folder, "lora-two", "grpo", kills=2, steps=5, seed=5, last=run_here)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "algorithm"),
    [("ten", "grpo"), ("ten-reinforce", "reinforce"), ("lora-ten", "grpo"), ("lora-ten-ppo", "ppo")],
)
def test_ten_kills_and_resumes_change_no_bit(folder, name, algorithm):
    kill_and_compare(folder, name, algorithm, kills=10, steps=12, seed=2)
