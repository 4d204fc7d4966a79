"""docs/speed.md and its picture agree with the results on file, and the workload is the one that they describe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.speed import goals, limits, page, rounds, workload
from benchmarks.speed.gate import Gate

RESULT: dict[str, Any] = json.loads(page.RESULT.read_text()) if page.RESULT.exists() else {}
measured = pytest.mark.skipif(not RESULT, reason="make bench has not been run: there are no results on file")


@measured
def test_the_page_and_its_picture_are_those_of_the_results_on_file():
    assert page.measured(RESULT) in page.PAGE.read_text()
    assert page.picture(RESULT) == page.PICTURE.read_text()


@measured
def test_both_sides_had_computed_the_same():
    assert {found["task"] for found in RESULT["check"]} == {"grpo", "dpo", "sft"}, (
        "each task is checked before it is timed"
    )
    for found in RESULT["check"]:
        assert found["ours"]["grad_norm"] == pytest.approx(found["trl"]["grad_norm"], rel=1e-3), found
        assert found["ours"]["loss"] == pytest.approx(found["trl"]["loss"], abs=1e-4), found


@measured
def test_every_goal_is_on_the_page_and_what_was_not_measured_is_said_to_be():
    text = page.PAGE.read_text()
    for goal in goals.GOALS:
        (line,) = [line for line in text.splitlines() if line.startswith(f"| {goal.what} |")]
        unknown = "| not measured |" in line or "| failed |" in line
        assert unknown == (goals.reached(goal, RESULT) is None)


@measured
def test_a_missed_goal_has_its_reason_on_file():
    found = {goal: goals.reached(goal, RESULT) for goal in goals.GOALS}
    silent = [goal.what for goal, value in found.items() if value and not value[1] and not goal.why_missed]
    assert silent == []


@measured
def test_the_results_are_those_of_the_workload_as_it_is_now():
    for case in RESULT["grpo"]:
        assert case["tokens"] == workload.SHAPES["short"].tokens()


@measured
def test_the_page_says_of_every_part_on_what_machine_and_of_which_version_it_was_measured():
    text = page.PAGE.read_text().partition("## The machine")[2]
    assert set(RESULT["origins"]) == set(RESULT) - {"origins"}
    for part, origin in RESULT["origins"].items():
        assert f"`{part}`" in text
        assert f"on {origin['date']} of commit {origin['commit']}" in text


@measured
def test_the_readme_says_what_was_measured():
    def speed(part: str, model: str, pair: str) -> float:
        (goal,) = [
            each
            for each in goals.GOALS
            if (each.part, each.model, each.pair) == (part, model, pair) and each.key == "speed"
        ]
        found = goals.reached(goal, RESULT)
        assert found
        return found[0]

    said = " ".join((page.ROOT / "README.md").read_text().split())
    default, best = (
        [f"{speed('grpo', model, pair):.1f}" for model in ("small", "large")]
        for pair in ("posttrain / TRL", "posttrain / TRL best")
    )
    assert (
        f"{default[0]} times as fast as TRL with its default settings ({best[0]} times with its best ones) for 2.7M "
        f"parameters, and {default[1]} times ({best[1]} times) for 110M"
    ) in said
    assert not any(found["case"].startswith("large") for found in RESULT["check"] if found["task"] == "grpo")
    assert "Gradients agree to 0.1% wherever they were compared (not at 110M)." in said
    sampled = [
        speed("sampling", model, f"posttrain {precision} / vLLM {precision}")
        for model in ("small", "large")
        for precision in ("float32", "bfloat16")
    ]
    assert f"Sampling alone is {min(sampled):.1f} to {max(sampled):.1f} times as fast as vLLM's CPU build" in said


def gate_after(turns: int, **settings: bool) -> Gate:
    gate = Gate.__new__(Gate)  # without starting its pipes
    gate.warm, gate._turns, gate._varying = turns > 0, turns, settings.get("varying", False)
    return gate


def test_lengths_are_those_given_or_vary_between_half_of_them_and_all():
    given = [8, 31, 128]
    assert gate_after(0).lengths(given) == [8, 8, 8]
    assert gate_after(5).lengths(given) == given
    steps = [gate_after(turn, varying=True).lengths(given) for turn in range(1, 17)]
    assert len(set(map(tuple, steps))) == 16, "no two steps are alike"
    assert all(4 <= a <= 8 and 15 <= b <= 31 and 64 <= c <= 128 for a, b, c in steps)
    assert max(steps)[2] - min(steps)[2] > 50


def test_tokens_of_a_step_by_hand():
    shape = workload.Shape(prompts=[3, 5], completions=[[2, 4], [1, 1]])
    assert shape.tokens() == {"sampled": 8, "padded": 4 * (5 + 4), "real": 8 + 2 * 8, "shared": 8 + 8}


def test_the_products_of_a_pass_are_six_operations_per_weight_and_token():
    model = {"hidden_size": 4, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    model |= {"intermediate_size": 6, "vocab_size": 10}
    weights = 2 * (4 * 4 + 2 * 4 * 2 + 4 * 4 + 3 * 4 * 6)
    found = limits.products(model, {"shared": 7, "sampled": 5})
    assert limits.operations(found) == 6 * (7 * weights + 5 * 40)


def test_a_ratio_is_that_of_medians_with_its_lowest_and_highest_round():
    ours = rounds.summary([{"seconds": s, "peak_bytes": 2**20} for s in (1.0, 2.0, 2.0)])
    theirs = rounds.summary([{"seconds": s, "peak_bytes": 2**22} for s in (4.0, 6.0, 8.0)])
    assert rounds.ratio(ours, theirs) == {"speed": 3.0, "lowest": 3.0, "highest": 4.0, "memory": 0.25}


STUBBORN = """
import signal, tempfile

def run(folder, settings, gate):
    signal.signal(signal.SIGTERM, lambda *_: None)  # as a training run does until its step has ended
    place = tempfile.mkdtemp()
    gate.turn(place=place)
    if settings:
        raise ValueError(place)
    gate.turn()
"""


def test_a_side_that_is_closed_leaves_no_folder_whether_it_worked_or_failed(tmp_path, monkeypatch):
    sides = tmp_path / "benchmarks" / "speed" / "sides"
    sides.mkdir(parents=True)
    (sides / "stubborn.py").write_text(STUBBORN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    worker = rounds.Worker(rounds.Side(name="ours", side="stubborn", task="run"), tmp_path, tmp_path / "log")
    place = Path(worker.ready["place"])
    assert place.exists()
    worker.step()
    worker.close()
    assert not place.exists()
    assert worker._process.returncode == 0, "it ended on its own and was not killed"
    failing = rounds.Side(name="ours", side="stubborn", task="run", settings={"fail": True})
    worker = rounds.Worker(failing, tmp_path, tmp_path / "log")
    with pytest.raises(rounds.SideFailed, match="ValueError") as error:
        worker.step()
    worker.close()
    assert not Path(str(error.value).removeprefix("ValueError: ")).exists()
    with pytest.raises(rounds.SideFailed, match="no attribute 'other'"):
        rounds.Worker(rounds.Side(name="ours", side="stubborn", task="other"), tmp_path, tmp_path / "log")
