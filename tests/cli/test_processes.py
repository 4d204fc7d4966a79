"""The command line in real processes: without a terminal, on one, in a pipe, and stopped by Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import yaml
from tests.catalogue import few
from tests.processes import Command

from posttrain.cli import run

POSTTRAIN = (sys.executable, "-m", "posttrain")
SLOW = """
import time
from pathlib import Path


def slow(prompt, completion, **row):
    done = Path("PLACE/pipe/01-first/checkpoints/step-000001/manifest.json")
    if done.exists() and not Path("PLACE/go-on").exists():
        Path("PLACE/evaluating").touch()
        time.sleep(2)
    return float(len(completion) % 2)
"""
COLOUR = re.compile(r"\x1b\[[0-9;]*(3[0-9]|4[0-9]|9[0-9])[0-9;]*m")


@contextmanager
def a_terminal_for_stdout(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Yield the output on the screen. It is complete when the `with` block has ended."""
    ours, theirs = pty.openpty()
    screen: list[bytes] = []

    def read() -> None:
        with suppress(OSError):  # Linux raises it when the terminal has no other end any more
            while part := os.read(ours, 65536):
                screen.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(theirs, "w") as stdout, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", stdout)
        yield screen
    reader.join()
    os.close(ours)


@pytest.mark.slow
def test_without_a_terminal_a_run_prints_plain_complete_lines_and_no_library_says_a_word(place):
    done = subprocess.run(
        [*POSTTRAIN, "train", "run.yaml", "lora={rank: 2}"],
        cwd=place, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    out = done.stdout
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in out
    assert "\r" not in out
    assert re.search(r"^step 2/2  reward [\d.]+ ", out, re.MULTILINE)
    assert "run/checkpoints/step-000002/model" in out
    assert "Loading weights" not in out
    assert "Writing model shards" not in out


@pytest.mark.parametrize("no_color", ["1", ""])
def test_a_run_on_a_terminal_has_colours_unless_they_are_not_wanted(place, monkeypatch, no_color):
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm-256color")
    with a_terminal_for_stdout(monkeypatch) as screen:
        assert run(["train", "run.yaml"]) == 0
    text = b"".join(screen).decode()
    assert "step 2/2" in text
    assert bool(COLOUR.search(text)) == (not no_color)


@pytest.mark.parametrize(
    ("sent", "exit_code"), few([(signal.SIGINT, 130), (signal.SIGTERM, 143)], (signal.SIGTERM, 143))
)
def test_a_signal_finishes_the_step_saves_and_says_how_to_go_on(place, sent, exit_code):
    process = Command("train", "run.yaml", "train.steps=100000", cwd=place)
    wait_for(place / "run" / "metrics.jsonl", process)
    process.send_signal(sent)
    _, err = process.communicate(timeout=600)
    assert process.returncode == exit_code
    assert json.loads((place / "run" / "error.json").read_text())["exit_code"] == exit_code
    done = json.loads((place / "run" / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    assert f"Interrupted: stopped after step {done}, with a checkpoint" in err
    assert "`posttrain resume run` continues it" in err
    assert "Traceback" not in err
    assert (place / "run" / "checkpoints" / f"step-{done:06d}" / "manifest.json").is_file()


@pytest.mark.slow
def test_a_signal_in_the_last_evaluation_of_a_stage_stops_the_pipeline_after_it(place):
    """The first stage is complete and evaluated. The second one has not begun, and `resume` begins it."""
    (place / "slow.py").write_text(SLOW.replace("PLACE", str(place)))
    settings = yaml.safe_load((place / "run.yaml").read_text())
    settings |= {"rewards": [{"function": "slow.py:slow"}], "output": "pipe"}
    settings["stages"] = [{"name": name, "train": {"steps": 1}} for name in ("first", "second")]
    (place / "pipeline.yaml").write_text(yaml.safe_dump(settings))
    process = Command("train", "pipeline.yaml", cwd=place)
    wait_for(place / "evaluating", process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130, err
    assert "stopped after stage first, which is complete" in err
    assert "trained" in json.loads((place / "pipe" / "01-first" / "evaluation.json").read_text())
    assert not (place / "pipe" / "02-second").exists()
    (place / "go-on").touch()
    resumed = Command("resume", "pipe", cwd=place)
    _, err = resumed.communicate(timeout=600)
    assert resumed.returncode == 0, err
    assert (place / "pipe" / "02-second" / "checkpoints" / "step-000001" / "manifest.json").is_file()


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error_to_show():
    process = subprocess.run(
        f"{' '.join(POSTTRAIN)} explain grpo | head -1", shell=True, capture_output=True, text=True, timeout=600
    )
    assert process.returncode == 0
    assert process.stderr == ""
    assert "GRPO" in process.stdout


def wait_for(path: Path, process: Command) -> None:
    deadline = time.monotonic() + 600
    while not path.exists():
        assert process.returncode is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
