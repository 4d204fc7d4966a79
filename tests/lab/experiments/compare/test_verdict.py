"""The verdict of a comparison on run folders with chosen scores: it claims no more than its intervals allow."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.lab.experiments.compare.synthetic import BASE, compared, write_run

from posttrain.control_groups import cores
from posttrain.lab.experiments.compare.api import Comparison, conclude
from posttrain.lab.experiments.compare.charts import difference_bars, score_bars
from posttrain.lab.experiments.compare.verdict import verdict
from posttrain.lab.experiments.compare.work import ATTEMPTS, keep_attempt, read_attempts, run_folder

BEFORE = "Before training, the held-out accuracy was 20.0% (12.0% to 28.0%)."


def test_a_clear_win(tmp_path: Path):
    found = compared(tmp_path, {"plain": [0.5, 0.52, 0.48], "clever": [0.8, 0.82, 0.78]})
    assert re.fullmatch(
        r"clever is better than plain by 30\.0 points \(95% interval \+\d\d\.\d to \+\d\d\.\d, p .*\), with 3 seeds\.",
        found.verdict[0],
    )
    assert found.verdict[1:] == [BEFORE]


def test_no_difference_says_what_would_have_been_seen(tmp_path: Path):
    found = compared(tmp_path, {"a": [0.5, 0.6, 0.4], "b": [0.52, 0.55, 0.49]})
    first, second, _ = found.verdict
    assert first.startswith(
        "No difference can be claimed between a and b with 3 seeds: the measured difference is 2.0 points for b over a"
    )
    assert re.fullmatch(
        r"A true difference of \d+\.\d points would be detected four times in five, a smaller one less often\.",
        second,
    )
    (pair,) = found.to_json()["pairs"]
    assert f"{100 * pair['smallest_seen']:.1f} points" in second


def test_too_few_runs_say_that_they_could_have_seen_nothing(tmp_path: Path):
    found = compared(tmp_path, {"a": [0.3, 0.5], "b": [0.6, 0.4]})
    assert found.verdict[0].endswith(
        "the measured difference is 10.0 points for b over a (95% interval −100.0 to +100.0)."
    )
    assert found.verdict[1] == "So few runs could not detect even the largest possible difference."


def test_a_winner_that_spoiled_the_model_is_no_success(tmp_path: Path):
    found = compared(tmp_path, {"a": [0.5, 0.52, 0.48], "b": [0.1, 0.12, 0.08]}, before=0.7)
    assert found.verdict[0].startswith("a is better than b by 40.0 points")
    assert found.verdict[0].endswith(", with 3 seeds, but no better than before training.")
    assert found.verdict[1].startswith("Before training, the held-out accuracy was 70.0% (")
    assert re.match(
        r"No better than before training: a \(−20\.0 points, 95% interval −\d.*\) and b \(−60\.0 p", found.verdict[2]
    )
    arm = found.to_json()["arms"]["a"]
    assert (arm["untrained"]["mean"], arm["untrained"]["seeds"]) == (pytest.approx(0.7), 3)
    assert arm["gain"]["mean"] == pytest.approx(-0.2)
    assert -1 < arm["gain"]["low"] < arm["gain"]["high"] < 0
    title, line, *_ = found.render().splitlines()
    assert "before training" in title
    assert "70.0%" in line
    page = (tmp_path / "report.html").read_text()
    assert '<div class="verdict plain' in page
    assert ">before training<" in page


def test_where_lower_is_better_a_rise_is_no_success(tmp_path: Path):
    found = compared(tmp_path, {"a": [0.5, 0.52, 0.48], "b": [0.7, 0.72, 0.68]}, before=0.1).analysis
    assert not any("better than before" in said for said in verdict(found))
    assert verdict(replace(found, measure="loss"))[0].endswith("but no better than before training.")


def test_a_gain_within_its_interval_is_not_called_one(tmp_path: Path):
    found = compared(tmp_path, {"a": [0.5, 0.52, 0.48], "b": [0.2, 0.25, 0.21]})
    (said,) = (said for said in found.verdict if "better than before" in said)
    assert said.startswith("Not shown to be better than before training: b (+2.0 points, 95% interval −")


def test_arms_that_start_from_other_scores_are_measured_against_their_own(tmp_path: Path):
    compared(tmp_path, {"a": [0.5, 0.52, 0.48], "b": [0.6, 0.62, 0.58]})
    for seed, score in enumerate([0.6, 0.62, 0.58]):
        folder = run_folder(tmp_path, "b", seed)
        shutil.rmtree(folder)
        write_run(folder, seed, score, before=0.7)
    said = conclude(tmp_path).verdict
    assert said[0].endswith("with 3 seeds, but no better than before training.")
    assert re.fullmatch(
        r"Before training, the held-out accuracy was 20\.0% \(.*\) for a and 70\.0% \(.*\) for b\. "
        r"The arms did not start level, so training is not all that separates them\.",
        said[1],
    )
    assert said[2].startswith("No better than before training: b (−10.0 points")


def test_lost_runs_do_not_make_arms_start_from_other_scores(tmp_path: Path):
    compared(tmp_path, {"a": [0.5, 0.52, 0.48], "b": [0.5, 0.52, None]})
    folder = run_folder(tmp_path, "a", 2)
    shutil.rmtree(folder)
    write_run(folder, 2, 0.48, before=0.35)
    assert re.fullmatch(
        r"Before training, the held-out accuracy was 25\.0% \(.*\) for a and 20\.0% \(.*\) for b, over the runs that "
        r"finished\.",
        next(said for said in conclude(tmp_path).verdict if said.startswith("Before training")),
    )


@pytest.mark.parametrize("kept", ["nothing", "the score"])
def test_the_score_before_training_may_have_no_examples_or_be_missing(tmp_path: Path, kept: str):
    compared(tmp_path, {"a": [0.1, 0.12, 0.05], "b": [0.5, 0.52, 0.48]})
    for path in tmp_path.glob("runs/*/evaluations/baseline.jsonl"):
        path.unlink()
    for path in tmp_path.glob("runs/*/evaluation.json") if kept == "nothing" else ():
        path.write_text(json.dumps({"trained": json.loads(path.read_text())["trained"]}))
    found = conclude(tmp_path)
    assert any("No better than before training: a (−11.0 points, 95%" in said for said in found.verdict) == (
        kept != "nothing"
    )
    assert ("before training" in found.render().lower()) == (kept != "nothing")
    assert found.to_json()["arms"]["a"]["untrained"]["mean"] == (None if kept == "nothing" else pytest.approx(0.2))


def test_of_three_arms_one_wins_and_two_stay_undecided(tmp_path: Path):
    found = compared(tmp_path, {"a": [0.5, 0.51, 0.5], "b": [0.52, 0.5, 0.51], "c": [0.9, 0.91, 0.9]})
    first, second, *_ = found.verdict
    assert re.match(r"c is better than a by .*, b by .*, with 3 seeds\.", first)
    assert second.startswith("No difference can be claimed between a and b with 3 seeds")


def test_one_seed_claims_nothing(tmp_path: Path):
    found = compared(tmp_path, {"a": [0.1], "b": [0.9]})
    assert found.verdict == [
        "One seed cannot separate the arms, because another seed might reverse their order: a 10.0%, b 90.0%. "
        "Use 3 or more.",
        "Before training, the held-out accuracy was 20.0%.",
        "No better than before training: a (−10.0 points).",
    ]


def test_lost_runs_are_counted_and_their_arm_is_not_called_better(tmp_path: Path):
    found = compared(tmp_path, {"safe": [0.4, 0.42, 0.41, 0.4], "wild": [0.9, None, 0.91, 0.9]})
    first, _, second = found.verdict
    assert first.startswith("The finished runs of wild are better than those of safe by")
    assert "is not claimed for wild itself, because 1 of its 4 runs are missing" in first
    assert second == "1 of 4 runs of wild did not finish (seed 1): GuardStop: step 3: no two answers differ."
    assert found.to_json()["arms"]["wild"]["lost"] == [
        {"seed": 1, "reason": "GuardStop: step 3: no two answers differ"}
    ]


def test_an_arm_that_lost_runs_can_be_worse(tmp_path: Path):
    found = compared(tmp_path, {"safe": [0.9, 0.92, 0.91, 0.9], "wild": [0.4, None, 0.41, 0.4]})
    assert found.verdict[0].startswith("safe is better than wild by")


def test_all_runs_of_an_arm_lost(tmp_path: Path):
    found = compared(tmp_path, {"safe": [0.9, 0.92], "wild": [None, None]})
    assert not found.comparable
    assert found.verdict[0].startswith("There is nothing to compare")
    assert found.verdict[2].startswith("2 of 2 runs of wild did not finish (seeds 0 and 1)")


CUT = "step {}: {} of 64 answers were cut; allowed: at most guards.max_truncated = 0.5.\n  Raise the limit."
ROUNDS = "0 of {} groups in 1{} rounds of sampling had a signal; allowed: 8 groups"


@pytest.mark.parametrize(
    ("kind", "messages", "told"),
    [
        (
            "GuardStop",
            [CUT.format(6, 55), CUT.format(7, 61), CUT.format(6, 60)],
            ["seeds 0, 1 and 2"],
        ),
        (
            "GuardStop",
            [ROUNDS.format(96, 0), CUT.format(7, 61), ROUNDS.format(80, 2)],
            ["seeds 0 and 2", "seed 1"],
        ),
        ("GuardStop", [ROUNDS.format(96, 0)] * 3, ["seeds 0, 1 and 2"]),
        (
            "MemoryError",
            ["exit code 1", "exit code 2", "exit code 1"],
            ["seeds 0 and 2", "seed 1"],
        ),
    ],
)
def test_runs_that_one_guard_stopped_are_named_together(
    tmp_path: Path, kind: str, messages: list[str], told: list[str]
):
    compared(tmp_path, {"safe": [0.5, 0.52, 0.48], "wild": [None] * 3})
    for seed, message in enumerate(messages):
        error = {"type": kind, "message": message, "exit_code": 4 if kind == "GuardStop" else 1}
        (run_folder(tmp_path, "wild", seed) / "error.json").write_text(json.dumps(error))
    sentences = [said for said in conclude(tmp_path).verdict if "did not finish" in said]
    for seeds, said in zip(told, sentences, strict=True):
        runs = [int(seed) for seed in re.findall(r"\d", seeds)]
        first = f"{kind}: {messages[runs[0]].splitlines()[0].rstrip('.')}"
        quoted = "" if len({messages[seed] for seed in runs}) == 1 else f" (quoted from seed {runs[0]})"
        assert said == f"{len(runs)} of 3 runs of wild did not finish ({seeds}): {first}{quoted}."


def test_a_collapsed_seed_is_named(tmp_path: Path):
    compared(tmp_path, {"a": [0.5, 0.5, 0.5], "b": [0.8, 0.8, 0.8]})
    folder = run_folder(tmp_path, "b", 1)
    for file in sorted(folder.rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    folder.rmdir()
    write_run(folder, 1, 0.02, middle=0.8)
    found = conclude(tmp_path)
    assert found.verdict[-1].startswith("1 of 3 runs of b collapsed (seed 1): they lost their abilities.")
    assert found.verdict[0].startswith("No difference can be claimed")  # one seed of three is far from the others
    assert found.to_json()["arms"]["b"]["collapsed"] == [1]


@pytest.mark.parametrize(("marks", "collapsed"), [("right or wrong", ["up-and-down"]), ("fractions", ["fell"])])
def test_collapses_are_counted_by_the_scores_that_are_compared(tmp_path: Path, marks: str, collapsed: list[str]):
    """The rewards give fractions where the check gives marks, and the other way round."""
    scores = {"fell": [0.4, 0.4], "up-and-down": [0.6, 0.6]}
    compared(tmp_path, scores, before=0.6, base=BASE | {"check": [{"name": "exact_match"}]}, score="check")
    for seed in range(2):
        folder = run_folder(tmp_path, "up-and-down", seed)
        shutil.rmtree(folder)
        write_run(folder, seed, 0.2, before=0.2, middle=0.8)
    for path in tmp_path.glob("runs/*/evaluation.json" if marks == "right or wrong" else "runs/*/evaluations/*.jsonl"):
        text = path.read_text().replace('"score_range": [0.0', '"score_range": [-1.0')
        path.write_text(text.replace('"right": 1.0', '"right": 0.9'))
    found = conclude(tmp_path)
    assert found.analysis.share == (marks == "right or wrong")
    assert [arm.name for arm in found.analysis.arms if arm.collapsed] == collapsed


def test_what_it_took_to_reach_the_target(tmp_path: Path):
    found = compared(tmp_path, {"fast": [0.9, 0.8], "slow": [0.6, 0.4]}, target=0.5)
    arms = found.to_json()["arms"]
    assert (arms["fast"]["measures"]["tokens to the target"], arms["fast"]["reached_target"]) == (2000.0, 2)
    assert (arms["slow"]["measures"]["tokens to the target"], arms["slow"]["reached_target"]) == (4000.0, 1)
    assert "4,000 (1 of 2)" in found.render()
    (pair,) = found.to_json()["measure_pairs"]["steps to the target"]
    assert (pair["mean"], pair["seeds"]) == (0.5, 1)


@pytest.mark.parametrize(("missed", "has_p"), [(None, True), ("slow", True), ("fast", False)])
def test_a_faster_arm_that_missed_the_target_is_not_called_faster(tmp_path: Path, missed: str | None, has_p: bool):
    scores = {"fast": [0.9, 0.8, 0.9, 0.9], "slow": [0.6, 0.6, 0.9, 0.6]}
    scores |= {missed: [*scores[missed][:-1], 0.3]} if missed else {}
    pairs = compared(tmp_path, scores, target=0.5).to_json()["measure_pairs"]
    for unit in ("steps", "tokens", "seconds"):
        (pair,) = pairs[f"{unit} to the target"]
        assert pair["mean"] < 1
        assert (pair["p"] is not None, pair["p_holm"] is not None) == (has_p, has_p)
        assert pair["seeds"] == (3 if missed else 4)
    assert (">3 of 4<" in (tmp_path / "report.html").read_text()) == (missed is not None)


def test_the_page_says_what_the_numbers_say(tmp_path: Path):
    found = compared(tmp_path, {"a": [0.5, 0.6, 0.4], "b": [0.52, 0.55, None]}, title="Which <one>?", target=0.4)
    page, saved = (tmp_path / "report.html").read_text(), json.loads((tmp_path / "compare.json").read_text())
    assert saved == found.to_json()
    for sentence in saved["verdict"]:
        assert sentence.replace("<", "&lt;") in page
    assert "Which &lt;one&gt;?" in page
    (pair,) = saved["pairs"]
    for edge in ("mean", "low", "high"):
        assert f"{100 * pair[edge]:+.1f}" in page
    for run in saved["runs"]:
        assert f"{run['arm']}, seed {run['seed']}" in page
    assert "GuardStop: step 3: no two answers differ" in page
    assert page.count('<figure class="card"') == 5  # differences, cost, and three curves
    assert not re.search(r"https?://(?!www\.w3\.org|github\.com/leeoniya/uPlot \()", page), (
        "only a comment may name uPlot"
    )


def test_equal_tokens_are_seen_and_unequal_ones_said(tmp_path: Path):
    compared(tmp_path, {"a": [0.5, 0.5], "b": [0.5, 0.5]})
    path = run_folder(tmp_path, "b", 0) / "metrics.jsonl"
    path.write_text(path.read_text().replace("4000", "9000"))
    found = conclude(tmp_path)
    assert "The arms used different numbers of tokens (a 4,000, b 6,500)" in " ".join(found.verdict)


def test_arms_that_did_not_begin_alike_are_told(tmp_path: Path):
    compared(tmp_path, {"a": [0.5, 0.5], "b": [0.5, 0.5]})
    assert conclude(tmp_path).to_json()["same_start"] is True
    path = run_folder(tmp_path, "b", 0) / "evaluations" / "baseline.jsonl"
    path.write_text(path.read_text().replace("True", "other"))
    found = conclude(tmp_path)
    assert found.to_json()["same_start"] is False
    assert any(sentence.startswith("Arms with the same seed did not start alike") for sentence in found.verdict)


def test_seconds_under_load_are_not_compared(tmp_path: Path):
    attempt = {"arm": "a", "seed": 0, "exit_code": 0, "reason": "", "seconds": 9.0, "workers": 1, "load": 30.0}
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "attempts.jsonl").write_text(json.dumps(attempt) + "\n")
    found = compared(tmp_path, {"a": [0.5, 0.5], "b": [0.5, 0.5]})
    assert found.verdict[-1].startswith(
        "Seconds of these runs are not comparable: other programs were running (load 30.0 on"
    )


def test_the_threads_of_a_comparison_are_no_other_program(tmp_path: Path):
    """One run at a time on all cores causes a load equal to the number of cores."""
    attempt = {"arm": "a", "seed": 0, "exit_code": 0, "reason": "", "seconds": 9.0, "workers": 1, "threads": cores()}
    keep_attempt(tmp_path, attempt | {"load": float(cores())})
    assert "other programs" not in " ".join(compared(tmp_path, {"a": [0.5, 0.5], "b": [0.5, 0.5]}).verdict)
    (tmp_path / ATTEMPTS).unlink()
    keep_attempt(tmp_path, attempt | {"threads": 1, "load": 1.8})
    assert "other programs were running (load 1.8" in " ".join(conclude(tmp_path).verdict)


def test_a_line_that_a_kill_cut_off_loses_nothing_else(tmp_path: Path):
    attempt = {"arm": "a", "seed": 0, "exit_code": 0, "reason": "", "seconds": 9.0, "workers": 1, "load": 0.0}
    (tmp_path / ATTEMPTS).write_text(json.dumps(attempt) + "\n" + json.dumps(attempt)[:30])
    assert compared(tmp_path, {"a": [0.5, 0.5], "b": [0.5, 0.5]}).analysis.conditions["workers"] == [1]
    keep_attempt(tmp_path, attempt | {"workers": 3})
    assert [found["workers"] for found in read_attempts(tmp_path)] == [1, 3]
    answers = run_folder(tmp_path, "a", 0) / "evaluations" / "trained.jsonl"
    answers.write_text(answers.read_text()[:-20])
    assert conclude(tmp_path).comparable


def test_arms_of_which_one_earned_fractions_are_judged_by_the_score(tmp_path: Path):
    """The other one, whose scores are all 0 or 1, would alone be judged by its share of right answers."""
    compared(tmp_path, {"partly": [0.0, 0.0, 0.0], "right": [0.30, 0.31, 0.29]}, before=0.0)
    score = {"mean": 0.6, "low": 0.55, "high": 0.65, "n": 100}
    for seed in range(3):
        folder = run_folder(tmp_path, "partly", seed)
        trained = json.loads((folder / "evaluation.json").read_text())["trained"]
        trained = {"greedy": {**trained["greedy"], "score": score}, "score_range": [0.0, 0.6]}
        (folder / "evaluation.json").write_text(json.dumps({"baseline": trained, "trained": trained}))
        answers = folder / "evaluations" / "trained.jsonl"
        answers.write_text(answers.read_text().replace('"score": 0.0', '"score": 0.6'))
    found = conclude(tmp_path)
    assert found.analysis.measure == "score"
    assert found.verdict[0].startswith("partly is better than right by 0.3")


def test_a_budget_of_tokens_that_is_passed_is_not_told_to_become_one(tmp_path: Path):
    compared(tmp_path, {"a": [0.5, 0.5], "b": [0.5, 0.5]}, budget={"tokens": 3500})
    path = run_folder(tmp_path, "b", 0) / "metrics.jsonl"
    path.write_text(path.read_text().replace("4000", "9000"))
    said = " ".join(conclude(tmp_path).verdict)
    assert "different numbers of tokens (a 4,000, b 6,500); a larger budget would hide the last step." in said


@pytest.mark.slow
def test_a_check_of_right_and_wrong_is_a_share_as_accuracy_is(tmp_path: Path):
    """Arms that answered everything alike once had intervals of width zero."""
    scores = {"a": [0.2, 0.2, 0.2], "b": [0.2, 0.2, 0.2]}
    checked = BASE | {"check": [{"name": "exact_match"}]}
    compared(tmp_path / "reward", scores)
    compared(tmp_path / "check", scores, base=checked, score="check")
    by_reward, by_check = (with_other_gradients(tmp_path / name, "b") for name in ("reward", "check"))
    assert by_check.to_json()["measure"] == "check"
    assert [said.replace("held-out check", "held-out accuracy") for said in by_check.verdict] == by_reward.verdict
    (pair,) = by_check.to_json()["pairs"]
    assert pair["low"] < 0 < pair["high"]
    assert "points" in by_check.verdict[0]


def with_other_gradients(folder: Path, arm: str) -> Comparison:
    """Conclude again after other gradients of an arm: its runs then differ from those of an arm with equal scores."""
    for path in sorted(folder.glob(f"runs/{arm}-seed*/metrics.jsonl")):
        path.write_text(path.read_text().replace('"grad_norm": 1.0', '"grad_norm": 1.5'))
    return conclude(folder)


@pytest.mark.slow
def test_arms_that_never_differed_are_called_the_same(tmp_path: Path):
    same = compared(tmp_path, {"a": [0.2, 0.3, 0.4], "b": [0.2, 0.3, 0.4], "c": [0.8, 0.8, 0.9]})
    said = "a and b gave the same results in every run: what differs between them had no effect here."
    assert said in same.verdict
    assert not any("No difference can be claimed" in sentence for sentence in same.verdict)
    assert [pair["same"] for pair in same.to_json()["pairs"]] == [True, False, False]
    assert said not in with_other_gradients(tmp_path, "b").verdict


def test_one_seed_is_enough_to_see_that_nothing_changed(tmp_path: Path):
    said, *_ = compared(tmp_path, {"a": [0.2], "b": [0.2]}).verdict
    assert said.startswith("a and b gave the same results in every run")


def without_examples(folder: Path) -> Comparison:
    for path in folder.glob("runs/*/evaluations/trained.jsonl"):
        path.unlink()
    return conclude(folder)


@pytest.mark.parametrize("seeds", [2, 3, 7])
def test_a_difference_that_every_seed_repeats_is_no_proof(tmp_path: Path, seeds: int):
    scores = [0.3 + 0.1 * seed for seed in range(seeds)]
    compared(tmp_path, {"a": scores, "b": [score - 0.1 for score in scores]})
    found = without_examples(tmp_path)
    assert re.match(
        rf"a is ahead of b by 10\.0 points with each of {seeds} seeds\. Nothing is claimed", found.verdict[0]
    )
    (pair,) = found.to_json()["pairs"]
    assert [pair[key] for key in ("low", "high", "p", "smallest_seen")] == [None] * 4
    assert "none: all seeds agree" in (tmp_path / "report.html").read_text()
    assert "inf" not in found.render()


def in_other_words(folder: Path, arm: str, share: str = "") -> Comparison:
    """Conclude again after an arm put its held-out prompts into other words."""
    for path in folder.glob(f"runs/{arm}-seed*/evaluations/*.jsonl"):
        path.write_text(path.read_text().replace('"prompt": "', f'"prompt": "{share}Be brief. '))
    return conclude(folder)


@pytest.mark.parametrize("changed", [["plain"], ["brief"], ["plain", "brief"]])
def test_arms_that_change_the_prompt_are_compared_row_by_row(tmp_path: Path, changed: list[str]):
    scores = {"plain": [0.5, 0.52, 0.48], "brief": [0.8, 0.82, 0.78]}
    expected = compared(tmp_path, scores).to_json()["pairs"]
    for number, arm in enumerate(changed):
        found = in_other_words(tmp_path, arm, share=str(number))
    assert found.to_json()["pairs"] == expected
    assert found.verdict[0].startswith("brief is better than plain by 30.0 points")


def test_seeds_that_hold_out_rows_of_their_own_keep_them_apart(tmp_path: Path):
    """The first row of one seed is not the first row of another."""
    compared(tmp_path, {"a": [0.5, 0.6], "b": [0.8, 0.7]})
    for path in tmp_path.glob("runs/*-seed1/evaluations/*.jsonl"):
        path.write_text(path.read_text().replace('"prompt": "', '"prompt": "other '))
    ((_, _), (_, examples)) = in_other_words(tmp_path, "b").analysis.pairs[0].estimate.parts
    assert examples == 199


def test_arms_without_a_common_example_are_told_so(tmp_path: Path):
    """`data.max_rows` may change which rows there are, so such arms are compared on equal prompts only."""
    arms = {"few": {"data.max_rows": 200}, "many": {"data.max_rows": 300}}
    base = BASE | {"data": {"train": "task:sort", "eval": "task:sort"}}
    compared(tmp_path, {"few": [0.2] * 3, "many": [0.9] * 3}, arms=arms, base=base)
    assert conclude(tmp_path).verdict[0].startswith("many is better than few")
    found = in_other_words(tmp_path, "many").verdict
    assert found[0] == "few and many cannot be compared: they share no held-out example."
    assert found[1] == BEFORE


def test_arms_without_a_common_seed_are_told_so(tmp_path: Path):
    said = compared(tmp_path, {"a": [0.2, None], "b": [None, 0.9]}).verdict
    assert said[0] == "a and b cannot be compared: they share no seed with which both finished."


def test_two_seeds_are_shown_as_two_dots_and_three_as_an_interval(tmp_path: Path):
    """The interval of two seeds uses Student's t with one degree of freedom, so it fills the plot."""
    two = compared(tmp_path / "two", {"a": [0.3, 0.4], "b": [0.5, 0.7]}).analysis
    for plot in (score_bars(two), difference_bars(two)):
        assert "whisker" not in plot
    assert score_bars(two).count("<circle") == 4
    assert difference_bars(two).count("<circle") == 2
    three = compared(tmp_path / "three", {"a": [0.3, 0.4, 0.35], "b": [0.5, 0.7, 0.6]}).analysis
    for plot in (score_bars(three), difference_bars(three)):
        assert "whisker" in plot
        assert "<circle" not in plot


def test_numbers_of_runs_that_did_not_finish_are_not_compared(tmp_path: Path):
    """A maximum over the steps before a guard stopped the run is smaller than one over all steps."""
    scores = {"a": [0.5, 0.52, 0.48], "b": [0.5, 0.53, 0.47], "stopped": [None] * 3, "once": [0.5, None, 0.5]}
    compared(tmp_path, scores)
    for path in tmp_path.glob("runs/*/metrics.jsonl"):  # numbers that vary between seeds and arms
        text = path.read_text()
        for name in ("memory/peak_rss_gb", "grad_norm"):
            text = text.replace(f'"{name}": 1.0', f'"{name}": {1 + (sum(map(ord, path.parent.name)) % 7) / 10}')
        path.write_text(text)
    for pairs in conclude(tmp_path).to_json()["measure_pairs"].values():
        counts = {(pair["first"], pair["second"]): pair["seeds"] for pair in pairs}
        assert counts == {("a", "b"): 3, ("a", "once"): 2, ("b", "once"): 2}


def test_pairs_with_lost_arms_do_not_cost_the_others_their_claims(tmp_path: Path):
    scores = {"a": [0.5, 0.52, 0.48], "b": [0.52, 0.53, 0.47]}
    alone = compared(tmp_path / "alone", scores).to_json()
    beside = compared(tmp_path / "beside", {**scores, "lost": [None] * 3}).to_json()
    assert beside["pairs"][0] == alone["pairs"][0]
    assert {name: of[0] for name, of in beside["measure_pairs"].items()} == {
        name: of[0] for name, of in alone["measure_pairs"].items()
    }
