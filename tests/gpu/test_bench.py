"""docs/speed-gpu.md agrees with the results on file, and the measurement keeps to its time."""

from __future__ import annotations

import doctest
import json
import signal
import sys
import time
from typing import Any

import psutil
import pytest
import torch
from benchmarks.gpu import budget, page, parts, work
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.budget import Part, Until, within
from benchmarks.gpu.calibration import put_into
from benchmarks.gpu.goals import GOALS, reached
from benchmarks.speed.rounds import Side

RESULT: dict[str, Any] = json.loads(page.RESULT.read_text()) if page.RESULT.exists() else {}


def test_the_page_is_that_of_the_results_on_file_and_there_is_none_before_a_card_was_measured():
    assert page.PAGE.exists() == bool(RESULT)
    if RESULT:
        assert page.page_of(RESULT) == page.PAGE.read_text()
        assert "driver" in RESULT["about"]["card"], "figures of a processor are not those of a card"


# --- the page --------------------------------------------------------------------------------------------------------


def side(seconds: float, **more: Any) -> dict[str, Any]:
    return {"seconds": seconds, "rounds": [seconds, seconds], "peak_mb": 40_000, "card_bytes": 60e9, **more}


def planted() -> dict[str, Any]:
    """A planted result: a card with 800 TFLOP/s, and a training step of 720 TFLOP."""
    origin = {"date": "2026-12-01", "commit": "abc", "machine": {}}
    common = {"model": {"parameters": 1_543_000_000}, "tokens": {"sampled": 26_000, "shared": 28_000}, "origin": origin}
    ours = side(4.0, **{"time/sample": 2.0, "time/train": 1.8, "time/publish": 0.2})
    ours |= {"planned_bytes": 44e9, "planned_seconds": 5.0}
    sides = {"posttrain": ours, "TRL": side(10.0), "TRL best": {"failed": "it was killed"}}
    grpo = {"task": "grpo", "flops": 7.2e14, "sides": sides, "ratios": parts.ratios(sides)} | common
    trained = {"posttrain": side(2.0), "TRL": side(3.0)}
    sft = {"task": "sft", "flops": 7.2e14, "sides": trained, "ratios": parts.ratios(trained)} | common
    probe = {"date": "2026-12-01", "bfloat16": 8e14, "float32": 5e13, "bandwidth": 2.5e12, "compute": 0.5}
    return {
        "about": {
            "card": {"name": "NVIDIA H100 80GB HBM3", "driver": "580.159.04", "memory_mib": 81_559},
            "torch": "2.13.0+cu130",
            "cuda": "13.0",
            "versions": {"trl": "1.16.0", "vllm": "0.31.0"},
        },
        "parts": {
            "rates": {"bfloat16_flops": 8e14, "bytes_per_second": 3e12, "origin": origin},
            "sft 1.5b": sft,
            "grpo 1.5b": grpo,
            "calibration": {
                "calibration": probe | {"layer_call": 1e-4},
                "predicted": {"generate": 1.0, "train": 2.0, "bytes": 1e9},
                "measured": {"generate": 1.5, "train": 2.5, "bytes": 2e9},
                "origin": origin,
            },
        },
        "skipped": {"grpo 3b": "it takes up to 170 s, and 12 s were left"},
    }


def test_a_page_from_planted_results():
    text = page.page_of(planted())
    step = "| GRPO step, {}, against TRL with vLLM on the same card, also with its best settings | 2.00× | {} |"
    assert step.format("1.5B", "2.50× | reached") in text
    assert step.format("3B", "not measured |") in text
    assert "| SFT step, 1.5B: share of the card's matrix rate | 45% | 45% | reached |" in text
    assert "posttrain / TRL: **2.50×** (2.50 to 2.50)" in text
    assert "- TRL best: it was killed" in text
    row = "| posttrain | 4.00 | 4.00, 4.00 | 41.9 GB | 60.0 GB | 2.00 s | 13,000 | 1.80 s | 50% | 0.20 s |"
    assert row in text, "7.2e14 operations in 1.8 s are half of 8e14 per second"
    assert "| grpo 1.5b | posttrain | 44.00 GB | 41.94 GB | +5% | 5.00 s | 4.00 s |" in text
    assert "- grpo 3b: it takes up to 170 s, and 12 s were left" in text
    assert "NVIDIA H100 80GB HBM3, 81,559 MiB, driver 580.159.04; torch 2.13.0+cu130, trl 1.16.0, vllm 0.31.0." in text
    assert "Products reach 800 TFLOP/s, training reaches 50% of that, copies reach 2,500 GB/s" in text


def test_a_missed_goal_is_called_missed_and_the_better_of_two_peers_counts():
    result = planted()
    sides = result["parts"]["grpo 1.5b"]["sides"] | {"TRL best": side(6.0)}
    result["parts"]["grpo 1.5b"] |= {"sides": sides, "ratios": parts.ratios(sides)}
    (goal,) = [goal for goal in GOALS if goal.part == "grpo 1.5b"]
    assert reached(goal, result) == 1.5
    assert "| 2.00× | 1.50× | missed |" in page.page_of(result)


def test_a_page_of_nothing_but_what_was_left_out():
    result = planted() | {"parts": {}}
    assert "not measured" in page.page_of(result)
    assert "## A GRPO step" not in page.page_of(result)


# --- the work --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [budget, page, work], ids=lambda module: module.__name__)
def test_the_examples_of_its_docstrings_hold(module):
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed


@pytest.mark.parametrize(("model", "billions"), [("0.5b", 0.494), ("1.5b", 1.543), ("3b", 3.085)])
def test_the_shapes_are_those_of_qwen(model, billions):
    """The parameter counts are those of the model cards, except for the biases."""
    shape = work.MODELS[model]
    width = shape["hidden_size"] // shape["num_attention_heads"]
    queries, keys = shape["hidden_size"], width * shape["num_key_value_heads"]
    layer = 2 * shape["hidden_size"] * (queries + keys) + 3 * shape["hidden_size"] * shape["intermediate_size"]
    total = shape["num_hidden_layers"] * layer + shape["vocab_size"] * shape["hidden_size"]
    assert total / 1e9 == pytest.approx(billions, abs=0.001)


def test_a_step_of_training_takes_about_six_operations_for_each_weight_and_token():
    shape = work.SHAPES["step"]
    told = {"model": work.MODELS["1.5b"], "lengths": shape.completions, "prompt_lengths": shape.prompts}
    per_weight_and_token = work.step_flops("grpo", told) / (1.543e9 * shape.tokens()["shared"])
    assert 5.9 < per_weight_and_token < 6.3


def test_dpo_and_sft_train_on_four_rows_of_each_prompt():
    told = {"lengths": [[1, 2, 3, 4, 5, 6, 7, 8]], "prompt_lengths": [10]}
    assert work.rows_of("sft", told) == [(10, 1), (10, 2), (10, 3), (10, 4)]
    assert (work.prompts_of("grpo", told), work.prompts_of("dpo", told)) == ([10], [10, 10])


# --- the time --------------------------------------------------------------------------------------------------------


def test_a_part_that_fails_leaves_the_others_and_what_does_not_fit_is_said():
    def fails(until: Until) -> dict[str, Any]:
        raise ValueError("no card")

    todo = [
        Part(name="first", seconds=1, measure=fails),
        Part(name="second", seconds=100, measure=lambda until: {}),
        Part(name="third", seconds=1, measure=lambda until: {"left": round(until.left)}),
    ]
    first, second, third = within(todo, budget=20)
    assert first.failed == "ValueError: no card"
    assert second.skipped.startswith("it takes up to 100 s, and ")
    assert (third.found, third.skipped, third.failed) == ({"left": 1}, "", "")


HANGS = """
import subprocess, sys, time

def run(folder, settings, gate):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (folder / "child").write_text(str(child.pid))
    for _ in range(settings["steps"]):
        gate.turn()
    time.sleep(600)
"""


@pytest.mark.parametrize(("steps", "measured"), [(0, 0), (3, 2)])
def test_a_side_that_hangs_is_killed_with_its_processes_and_keeps_what_it_measured(
    tmp_path, monkeypatch, steps, measured
):
    sides = tmp_path / "benchmarks" / "speed" / "sides"
    sides.mkdir(parents=True)
    (sides / "hanging.py").write_text(HANGS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    hanging = Side(name="theirs", side="hanging", task="run", settings={"steps": steps})
    began = time.monotonic()
    found = parts.one_after_the_other([hanging], tmp_path, Until.after(5))
    assert time.monotonic() - began < 25
    assert found["theirs"]["failed"] == "its time was over"
    assert len(found["theirs"].get("rounds", [])) == measured
    child = int((tmp_path / "child").read_text())
    until = Until.after(10)
    while alive(child) and until.left:
        time.sleep(0.05)
    assert not alive(child)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_calibration_takes_the_place_of_an_older_one_of_its_card(tmp_path):
    file = tmp_path / "measured.json"
    put_into(file, {"machine": "A", "compute": 1})
    put_into(file, {"machine": "B", "compute": 2})
    put_into(file, {"machine": "A", "compute": 3})
    assert {name: one["compute"] for name, one in json.loads(file.read_text()).items()} == {"A": 3, "B": 2}


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch):
    """Run `python -m benchmarks.gpu` in this process and return its exit code."""

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", *arguments])
        return main()

    before = signal.getsignal(signal.SIGTERM)
    yield run
    signal.signal(signal.SIGTERM, before)


def test_a_processor_is_not_put_among_the_results_of_a_card(command, capsys):
    with pytest.raises(SystemExit, match="2"):
        command("rates", "--device", "cpu")
    assert "figures of a CPU must not replace those of a GPU" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a card")
def test_without_a_card_nothing_is_measured(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command("--out", str(tmp_path / "speed.json")) == 1
    assert capsys.readouterr().err.startswith("no NVIDIA driver")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_command_measures_keeps_and_writes_its_page(command, tmp_path, capsys):
    out, where = tmp_path / "speed.json", ("--device", "cpu", "--models", "tiny")
    assert command("rates", "calibration", *where, "--budget", "40", "--out", str(out)) == 0
    result = json.loads(out.read_text())
    assert list(result["parts"]) == ["rates"]
    assert result["skipped"]["calibration"].startswith("it takes up to 120 s, and ")
    assert out.with_suffix(".md").read_text() == page.page_of(result)
    assert capsys.readouterr().out.startswith("rates: ")
    assert command("rates", *where, "--missing", "--out", str(out)) == 0
    assert capsys.readouterr().out == "", "the result is on file already"


@pytest.mark.slow
def test_every_part_runs_on_a_processor(command, tmp_path, monkeypatch):
    """Peers are not installed; their sides say so."""
    monkeypatch.delenv("POSTTRAIN_BENCH_TRL", raising=False)
    out = tmp_path / "speed.json"
    assert command("--device", "cpu", "--models", "tiny", "--budget", "900", "--out", str(out)) == 0
    result = json.loads(out.read_text())
    assert set(result["parts"]) == {"rates", "calibration", *(f"{task} tiny" for task in page.TITLES)}
    for task in ("grpo", "sft", "dpo"):
        sides = result["parts"][f"{task} tiny"]["sides"]
        assert sides["posttrain"]["seconds"] > 0
        assert sides["posttrain"]["planned_bytes"] > 0
        assert sides["TRL"]["failed"].startswith("POSTTRAIN_BENCH_TRL does not name the environment")
    assert result["parts"]["sampling tiny"]["sides"]["posttrain"]["tokens"] == sum(
        map(sum, work.SHAPES["tiny"].completions)
    )
