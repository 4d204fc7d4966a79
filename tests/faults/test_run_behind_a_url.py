"""A run whose output is a URL is killed, continues on another machine, and equals an uninterrupted run (CPU)."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from pathlib import Path

import pytest
import yaml
from tests.faults import kill_driver
from tests.processes import Ended, run_alone
from tests.store.urls import contents, rows
from tests.tiny import tiny_model, write_prompts

import posttrain
from posttrain.store import carrier
from posttrain.train.run import Run

STEPS = 6
REWARD = """
def vowels(prompt, completion, **row):
    return sum(letter in "aeiou" for letter in completion) / 8
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("url")
    tiny_model(folder / "model")
    write_prompts(folder / "prompts.jsonl", count=24)
    (folder / "rewards.py").write_text(REWARD)
    return folder


def write_config(folder: Path, output: str) -> Path:
    config = {
        "model": str(folder / "model"),
        "algorithm": "grpo",
        "data": {"train": str(folder / "prompts.jsonl")},
        "rewards": [{"function": f"{folder / 'rewards.py'}:vowels"}],
        "sampling": {"group_size": 4, "max_completion_length": 8},
        "train": {"steps": STEPS, "prompts_per_step": 4, "learning_rate": 1e-3},
        "evaluation": {"writing": 0, "prompts": 2, "samples": 1},
        "checkpoint": {"every": 2, "keep": 2},
        "guards": {"max_truncated": 1.0},
        "output": output,
        "report": False,
    }
    path = folder / f"{output.rpartition('/')[2]}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


LOSING = """
from pathlib import Path

def vowels(prompt, completion, **row):
    bucket = Path(__file__).parent / "lost"
    away = bucket.with_name("away-once")
    if (bucket / "run" / "metrics.jsonl").exists() and not away.exists():  # a step has been carried
        away.touch()
        bucket.rename(bucket.with_name("away"))
        bucket.write_text("no folder")
    return sum(letter in "aeiou" for letter in completion) / 8
"""


def drive_on(machine: str, every: str, verb: str, target: str, *killed: str) -> None:
    """Call it in a separate process; a machine is represented by a folder for runs."""
    os.environ["POSTTRAIN_RUNS"] = machine
    carrier.EVERY, carrier.PATIENCE = float(every), 1.0
    if killed:
        kill_in_third_save()
    posttrain.train(target) if verb == "train" else posttrain.resume(target)


def kill_in_third_save() -> None:
    """Kill the process in the save of step 4, after all older files are at the URL."""
    save, calls = Run.save, []

    def killed(self: Run, **how: bool) -> None:
        calls.append(self.step)
        if len(calls) == 3:
            self.store.carrier.finish()
            threading.Thread(target=kill_driver.kill_after, args=(0.005,), daemon=True).start()
        save(self, **how)

    Run.save = killed


def drive(folder: Path, machine: str, verb: str, target: str, *killed: str) -> Ended:
    return run_alone(drive_on, str(folder / machine), "0.05", verb, target, *killed)


def test_killed_in_a_save_it_goes_on_elsewhere_bit_for_bit(folder):
    """The save of step 4 is killed; the other machine gets the files that are at the URL then."""
    url = f"file://{folder}/bucket/run"
    whole = drive(folder, "whole", "train", str(write_config(folder, str(folder / "whole-run"))))
    assert whole.exit_code == 0, whole.errors
    killed = drive(folder, "first", "train", str(write_config(folder, url)), "killed")
    assert killed.exit_code == -signal.SIGKILL, killed.errors
    assert not (folder / "bucket" / "run" / "checkpoints" / f"step-{STEPS:06d}").exists()
    resumed = drive(folder, "second", "resume", url)
    assert resumed.exit_code == 0, resumed.errors
    last = f"checkpoints/step-{STEPS:06d}"
    there, expected = contents(folder / "bucket" / "run" / last), contents(folder / "whole-run" / last)
    assert there == expected
    assert rows(folder / "bucket" / "run") == rows(folder / "whole-run")
    [local] = (folder / "second").iterdir()
    assert re.search("resumed after step [24]", (local / "events.jsonl").read_text())
    assert contents(folder / "bucket" / "run") == contents(local)


@pytest.mark.slow
def test_storage_that_is_lost_ends_the_run_with_an_error_and_resume_carries_the_rest(folder):
    url = f"file://{folder}/lost/run"
    (folder / "lost").mkdir()
    config = write_config(folder, url)
    (folder / "losing.py").write_text(LOSING)
    config.write_text(config.read_text().replace("rewards.py:vowels", "losing.py:vowels"))
    ended = drive(folder, "loser", "train", str(config))
    [local] = (folder / "loser").iterdir()
    assert ended.exit_code == 1
    assert f"not everything could be sent to {url}" in ended.errors
    assert f"everything is in {local}" in ended.errors
    assert json.loads((local / "error.json").read_text())["exit_code"] == 1
    warnings = [event["message"] for event in events(local) if event.get("about") == "output"]
    assert warnings[0].startswith(f"sending to {url} is suspended")
    (folder / "lost").unlink()
    (folder / "away").rename(folder / "lost")
    resumed = drive(folder, "loser", "resume", str(local))
    assert resumed.exit_code == 0, resumed.errors
    assert contents(folder / "lost" / "run") == contents(local)
    assert not (local / "error.json").exists()


def events(run: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_run_at_a_url_is_evaluated_where_it_never_was(folder, tmp_path, monkeypatch):
    url = f"file://{tmp_path}/bucket/measured"
    monkeypatch.setenv("POSTTRAIN_RUNS", str(tmp_path / "first"))
    run = posttrain.train(write_config(folder, url))
    monkeypatch.setenv("POSTTRAIN_RUNS", str(tmp_path / "second"))
    assert posttrain.evaluate(url).to_json() == posttrain.evaluate(run.folder).to_json()


@pytest.mark.slow
def test_two_ranks_of_one_machine_carry_the_run_of_two_ranks(folder):
    url = f"file://{folder}/ranks/run-of-two"
    for output, machine in ((url, "ranked"), (str(folder / "two"), "plain")):
        config = write_config(folder, output)
        config.write_text(config.read_text().replace("train:\n", "train:\n  devices: 2\n"))
        ended = drive(folder, machine, "train", str(config))
        assert ended.exit_code == 0, ended.errors
    last = f"checkpoints/step-{STEPS:06d}"
    there = contents(folder / "ranks" / "run-of-two" / last)
    assert {"state/rank-00000.safetensors", "state/rank-00001.safetensors"} <= there.keys()
    assert there == contents(folder / "two" / last)
