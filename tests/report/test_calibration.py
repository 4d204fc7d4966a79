"""The calibration panel of a report: read only from the files of a run, for pairs, ratings and steps."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from posttrain.report.calibration import calibration_section, calibration_sentences
from posttrain.report.page import render
from posttrain.report.store import read_run
from posttrain.report.terminal import TerminalView
from posttrain.report.verdict import verdict

SPAN = {"mean": 0.9, "low": 0.85, "high": 0.95, "n": 100}
WORSE = {"mean": 0.5, "low": 0.4, "high": 0.6, "n": 100}


def probabilities(accuracy: dict[str, Any], error: float, **more: Any) -> dict[str, Any]:
    bins = [
        {"n": 50, "predicted": 0.55, "found": {"mean": 0.5, "low": 0.36, "high": 0.64, "n": 50}},
        {"n": 50, "predicted": 0.95, "found": {"mean": 1.0, "low": 0.92, "high": None, "n": 50}},
    ]
    spread = {"mean": error, "low": max(0.0, error - 0.05), "high": error + 0.01, "n": 100}
    brier = {"mean": 0.12, "low": 0.1, "high": 0.14, "n": 100}
    calibration = {"error": spread, "error_by_chance": 0.05, "bins": bins}
    return {"confidence": 0.95, "accuracy": accuracy, "brier": brier, "calibration": calibration, **more}


def ratings(error: float) -> dict[str, Any]:
    span = {"mean": error, "low": error - 0.1, "high": error + 0.1, "n": 80}
    bins = [
        {"n": 40, "predicted": 10 * k, "found": {"mean": 10 * k + 1, "low": 10 * k - 1, "high": 10 * k + 3, "n": 40}}
        for k in (1, 2)
    ]
    return {
        "ratings": 80,
        "confidence": 0.95,
        "rmse": span,
        "pearson": SPAN,
        "spearman": SPAN,
        "calibration": {"bins": bins},
    }


EVALUATIONS = {
    "pairs": {
        side: probabilities(found, 0.2, pairs=100, margin=SPAN)
        for side, found in (("baseline", WORSE), ("trained", SPAN))
    },
    "steps": {
        side: probabilities(found, 0.04, answers=100, steps=300, auc=found)
        for side, found in (("baseline", WORSE), ("trained", SPAN))
    },
    "ratings": {
        "baseline": ratings(3.0),
        "trained": ratings(1.0),
        "difference": {"rmse": {"mean": -2, "low": -2.2, "high": -1.8, "n": 80}},
    },
}


def run_with(folder: Path, evaluation: dict[str, Any]):
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 0.5}) + "\n")
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    return read_run(folder)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (
            "pairs",
            "Expected calibration error 20% (15% to 21%), where right probabilities would show about 5% by chance.",
        ),
        (
            "steps",
            "4% (0% to 5%), where right probabilities would show about 5% by chance: no sign that they are wrong.",
        ),
        ("steps", "A right step scores above a wrong one with probability 0.9 (0.85 to 0.95); 0.5 is chance."),
        (
            "ratings",
            "Predicted and given ratings correlate with 0.9 (0.85 to 0.95), their ranks with 0.9 (0.85 to 0.95).",
        ),
    ],
)
def test_the_page_plots_and_says_how_far_scores_can_be_believed(tmp_path, kind, says):
    run = run_with(tmp_path, EVALUATIONS[kind])
    page = render(run)
    assert 'id="calibration"' in page
    assert says in page
    section = calibration_section(run)
    assert section.count('class="dot s1"') == section.count('class="dot s6"') == 2
    assert 'class="mark"' in section  # the diagonal
    assert verdict(run).change == 1


@pytest.mark.parametrize(("kind", "first"), [("pairs", "50%"), ("steps", "0%")])
def test_the_diagonal_runs_through_equal_shares_and_both_axes_are_named(tmp_path, kind, first):
    """Predictions for pairs are at least one half, but the observed share can be anything."""
    section = calibration_section(run_with(tmp_path, EVALUATIONS[kind]))
    [ends] = re.findall(r'class="mark" x1="(.*?)" y1="(.*?)" x2="(.*?)" y2="(.*?)"', section)
    x1, y1, x2, y2 = map(float, ends)
    assert (x1, x2, y2) == (52, 548, 12)
    assert y1 == (107 if kind == "pairs" else 202)
    assert re.search(rf'<text class="tick" x="52.0" [^>]*>{first}<', section)
    assert all(f">{name}</text>" in section for name in ("predicted", "found"))


def test_an_interval_without_an_end_is_no_whisker(tmp_path):
    section = calibration_section(run_with(tmp_path, EVALUATIONS["pairs"]))
    assert section.count('class="whisker s1"') == 1


def test_axes_of_ratings_are_in_their_units(tmp_path):
    assert ">25<" in calibration_section(run_with(tmp_path, EVALUATIONS["ratings"]))


@pytest.mark.parametrize(
    "evaluation", [{}, {"baseline": {"loss": SPAN}}, {"trained": {"pairs": 10, "calibration": {"bins": "?"}}}]
)
def test_a_run_without_it_has_no_such_section(tmp_path, evaluation):
    assert calibration_section(run_with(tmp_path, evaluation)) == ""


def test_nothing_measured_says_nothing():
    assert calibration_sentences({}) == []


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("pairs", "puts 90% (85% to 95%) of 100 held-out pairs of given answers in the right order"),
        ("steps", "judges 90% (85% to 95%) of the steps of 100 held-out answers rightly"),
        ("ratings", "has a rank correlation of 0.9 (0.85 to 0.95) with the ratings of 100 held-out answers"),
    ],
)
def test_beside_a_learned_reward_stands_how_far_it_can_be_trusted(tmp_path, kind, says):
    policy = {"greedy": {"score": SPAN}, "score_range": [-1, 2], "prompts": 100, "confidence": 0.95}
    run = run_with(tmp_path, {"baseline": policy, "trained": policy, "reward_model": EVALUATIONS[kind]})
    assert any(says in sentence for sentence in verdict(run).sentences)


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("pairs", "held-out trained: accuracy 90% (85% to 95%), margin 0.9, 100 pairs\n"),
        ("steps", "held-out trained: accuracy 90% (85% to 95%), 100 answers\n"),
        ("ratings", "held-out trained: rmse 1 (0.9 to 1.1), 80 ratings\n"),
    ],
)
def test_the_terminal_says_it_in_a_line(capsys, kind, line):
    TerminalView().evaluation("trained", EVALUATIONS[kind]["trained"])
    assert capsys.readouterr().out == line
