"""Ctrl-C and SIGTERM: the same end, each with the exit code of its signal, wherever a command is at that moment."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path

import pytest
import yaml
from tests.processes import Command

from posttrain import cli
from posttrain.stopping import stopped, terminated_as_interrupted

HANGS = """
import time
from pathlib import Path
if not Path("go-on").exists():
    Path("here").touch()
    time.sleep(600)


def score(prompt, completion, **row):
    return float(len(completion) % 2)
"""


def test_sigterm_raises_what_ctrl_c_raises_with_its_own_exit_code():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt) as stop, terminated_as_interrupted():
        signal.raise_signal(signal.SIGTERM)
    assert vars(stop.value)["exit_code"] == 143
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_ignored_sigterm_stays_ignored():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with terminated_as_interrupted():
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_other_threads_leave_signals_to_their_program():
    seen = []

    def work() -> None:
        with terminated_as_interrupted():
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.parametrize("verb", ["train", "eval", "export", "data"])
def test_any_verb_that_sigterm_stops_says_so_and_answers_programs(monkeypatch, capsys, verb):
    monkeypatch.setattr(cli, "_invoke", lambda arguments: signal.raise_signal(signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    assert cli.run([verb, "x", "--json"]) == 143
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["exit_code"] == 143
    assert "Interrupted: stopped before it was finished" in err
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_exception_without_a_code_is_that_of_ctrl_c():
    assert vars(stopped(signal.SIGINT, "stopped"))["exit_code"] == 130


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("pipeline", [False, True], ids=["run", "pipeline"])
def test_a_signal_during_the_set_up_is_told_and_the_folder_can_be_used_again(tmp_path: Path, pipeline, sent):
    (tmp_path / "hangs.py").write_text(HANGS)
    settings = {
        "model": "tiny:sort",
        "algorithm": "grpo",
        "data": {"train": "task:sort"},
        "rewards": [{"function": "hangs.py:score"}],
        "sampling": {"group_size": 2, "max_completion_length": 4},
        "train": {"steps": 1, "prompts_per_step": 2},
        "output": "run",
    }
    if pipeline:
        settings["stages"] = [{"name": "only"}]
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(settings))
    process = Command("train", "run.yaml", "--json", cwd=tmp_path)
    while not (tmp_path / "here").exists():
        assert process.returncode is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(sent)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 128 + sent, err
    assert json.loads(out)["error"]["exit_code"] == 128 + sent
    assert "Traceback" not in err
    (tmp_path / "go-on").touch()
    again = Command("train", "run.yaml", "--json", cwd=tmp_path)
    _, err = again.communicate(timeout=600)
    assert again.returncode == 0, err
