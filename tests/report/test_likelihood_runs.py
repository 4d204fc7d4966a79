"""Statements about runs that learn from given answers: pairs, labels and demonstrations."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.catalogue import catalogue

from posttrain.report.charts import heldout_bars, learning_charts
from posttrain.report.notes import observations
from posttrain.report.page import render
from posttrain.report.proofs import proofs
from posttrain.report.store import RunRecord
from posttrain.report.terminal import TerminalView
from posttrain.report.verdict import verdict


def interval(mean: float, half: float, n: int = 200) -> dict[str, Any]:
    return {"mean": mean, "low": mean - half, "high": mean + half, "n": n}


def pairs(accuracy: float, *, half: float = 0.06, **more: Any) -> dict[str, Any]:
    """Return the results that a policy's evaluation on held-out pairs leaves in evaluation.json."""
    shared = {"accuracy": interval(accuracy, half), "accuracy_per_token": interval(0.6, 0.06)}
    kept = {"margin": interval(1.25, 0.3), "logps_chosen": interval(-40.0, 2.0), "logps_rejected": interval(-45.0, 2.0)}
    return {"pairs": 200, "confidence": 0.95, "ranked_by": "sequence log-probability", **shared, **kept, **more}


def pair_run(before: float, after: float, change: dict[str, Any], **more: Any) -> RunRecord:
    implicit = {"accuracy": interval(0.74, 0.05), "margin": interval(0.8, 0.2)}
    evaluation = {
        "baseline": pairs(before),
        "trained": pairs(after, implicit=implicit),
        "difference": {"accuracy": change, **more},
    }
    rows = [
        {
            "step": step,
            "loss": 0.69 - 0.02 * step,
            "rewards/margins": 0.1 * step,
            "rewards/accuracies": min(1.0, 0.5 + 0.03 * step),
            "rewards/chosen": 0.05 * step,
            "rewards/rejected": -0.05 * step,
            "logps/chosen": -40.0 + 0.1 * step,
            "logps/rejected": -45.0 - step,
            "entropy": 1.0 / step,
            "grad_norm": 1.0,
            "num_tokens": 100 * step,
        }
        for step in range(1, 21)
    ]
    return RunRecord(folder=Path("run"), status="finished", metrics=rows, evaluation=evaluation)


def titles(run: RunRecord) -> list[str]:
    return [note.title for note in observations(run)]


def test_the_verdict_on_pairs_names_both_accuracies_and_the_interval_of_their_difference():
    found = verdict(pair_run(0.52, 0.71, interval(0.19, 0.06)))
    assert found.headline == "The model improved."
    assert (
        "Held-out pair accuracy (the chosen answer is likelier than the rejected one): 52% → 71%" in found.sentences[0]
    )
    assert "(difference +19 points, 95% interval +13 to +25), on the same 200 pairs" in found.sentences[0]
    assert "By the implicit reward" in found.sentences[1]
    assert "74% (69% to 79%)" in found.sentences[1]
    assert "Ranked per token" in found.sentences[2]


def test_a_difference_that_may_be_nothing_is_called_that():
    found = verdict(pair_run(0.52, 0.55, interval(0.03, 0.05)))
    assert found.headline == "No improvement is shown."
    assert "95% interval −2 to +8, which contains 0)" in found.sentences[0]
    assert "intervals of the two overlap" in found.sentences[0]


def checked(judge: tuple[float, float], words: tuple[float, float] | None = None) -> dict[str, Any]:
    """Return the scores of independent checks for the answers before and after."""
    sides = {"judge": judge} | ({} if words is None else {"words": words})
    return {
        label: {"baseline": interval(before, 0.1, 90), "trained": interval(after, 0.1, 90)}
        for label, (before, after) in sides.items()
    }


BOTH = (
    "By the independent checks “judge” and “words” the model's answers score {} than before; "
    "the ranking of held-out pairs {}."
)


@pytest.mark.parametrize(
    ("difference", "judge", "words", "headline", "change", "tone"),
    [
        ((0.03, 0.05), (0.3, 0.9), (0.0, 0.8), BOTH.format("higher", "shows no change"), 0, "good"),
        ((0.03, 0.02), (0.3, 0.9), (0.0, 0.8), BOTH.format("higher", "improved"), 1, "good"),
        ((0.03, 0.05), (0.9, 0.3), (0.8, 0.0), BOTH.format("lower", "shows no change"), 0, "bad"),
        ((0.03, 0.05), (0.3, 0.9), (0.0, 0.1), "No improvement is shown.", 0, "plain"),
        ((0.03, 0.05), (0.3, 0.9), (0.8, 0.0), "No improvement is shown.", 0, "plain"),
    ],
)
def test_the_checks_are_told_where_the_ranking_of_given_answers_hardly_moved(
    difference, judge, words, headline, change, tone
):
    run = pair_run(0.52, 0.55, interval(*difference))
    found = verdict(replace(run, evaluation={**run.evaluation, "check": checked(judge, words)}))
    assert (found.headline, found.change, found.tone) == (headline, change, tone)


@pytest.mark.parametrize(
    ("drift", "end"),
    [(0.05, ". On other prompts the model stays within the bound."), (0.6, ". The model has forgotten: ")],
)
def test_beside_the_checks_it_is_told_what_the_model_kept(drift, end):
    run = pair_run(0.52, 0.55, interval(0.03, 0.05))
    others = {"prompts": 64, "max_drift": 0.2, "drift": interval(drift, 0.05, 64)}
    told = {**run.evaluation, "check": checked((0.3, 0.9)), "others": others}
    headline = verdict(replace(run, evaluation=told)).headline
    assert headline.startswith("By the independent check “judge”")
    assert end in headline


def test_a_ranking_that_got_a_little_worse_is_told_whatever_the_checks_say():
    run = pair_run(0.55, 0.52, interval(-0.03, 0.02))
    found = verdict(replace(run, evaluation={**run.evaluation, "check": checked((0.3, 0.9))}))
    assert (found.headline, found.change) == ("The model got worse.", -1)


def test_a_ranking_that_clearly_improved_is_told_first():
    run = pair_run(0.52, 0.71, interval(0.19, 0.06))
    assert verdict(replace(run, evaluation={**run.evaluation, "check": checked((0.3, 0.9))})).headline == (
        "The model improved."
    )


def test_a_ranking_that_improved_while_the_check_fell_is_not_called_a_reward():
    run = pair_run(0.52, 0.71, interval(0.19, 0.06))
    found = verdict(replace(run, evaluation={**run.evaluation, "check": checked((0.9, 0.3))}))
    headline = "By the ranking of held-out pairs the model improved; by the independent check it got worse."
    assert (found.headline, found.tone) == (headline, "bad")


def test_of_two_checks_the_one_that_fell_is_named():
    run = pair_run(0.52, 0.71, interval(0.19, 0.06))
    found = verdict(replace(run, evaluation={**run.evaluation, "check": checked((0.3, 0.9), (0.8, 0.0))}))
    assert found.headline.endswith("improved; by the independent check “words” it got worse.")


def test_one_check_and_a_loss_that_stayed():
    sides = {side: {"prompts": 9, "loss": interval(2.0, 0.1, 9)} for side in ("baseline", "trained")}
    run = RunRecord(folder=Path("run"), status="finished", evaluation={**sides, "check": checked((0.3, 0.9))})
    assert verdict(run).headline == (
        "By the independent check “judge” the model's answers score higher than before; "
        "the held-out loss shows no change."
    )


def test_a_check_cannot_stand_for_what_was_not_measured():
    """Answers of a single class have no AUC."""
    only = {"answers": 9, "desirable": 9, "undesirable": 0, "confidence": 0.95}
    evaluation = {"baseline": only, "trained": only, "check": checked((0.3, 0.9))}
    run = RunRecord(folder=Path("run"), status="finished", evaluation=evaluation)
    assert verdict(run).headline == "The held-out data cannot show whether the model improved."


def test_answers_that_checks_prefer_and_that_repeat_themselves_are_no_improvement():
    writing = {
        "prompts": 90,
        "baseline": {"repetition": interval(0.1, 0.05, 90)},
        "trained": {"repetition": interval(0.6, 0.05, 90)},
        "difference": {"repetition": interval(0.5, 0.05, 90)},
    }
    run = pair_run(0.52, 0.55, interval(0.03, 0.05))
    found = verdict(replace(run, evaluation={**run.evaluation, "check": checked((0.3, 0.9)), "writing": writing}))
    assert found.headline.endswith("shows no change. The model writes worse: its answers repeat themselves.")
    assert (found.change, found.tone) == (0, "bad")


def test_labels_are_judged_by_their_auc():
    auc = {"answers": 90, "desirable": 40, "undesirable": 50, "confidence": 0.95}
    evaluation = {
        "baseline": {**auc, "auc": interval(0.5, 0.1, 90)},
        "trained": {**auc, "auc": interval(0.8, 0.08, 90), "implicit": {"auc": interval(0.85, 0.07, 90)}},
        "difference": {"auc": interval(0.3, 0.1, 90)},
    }
    run = RunRecord(folder=Path("run"), status="finished", evaluation=evaluation)
    found = verdict(run)
    assert (found.measure, found.change) == ("auc", 1)
    assert "0.5 → 0.8 (difference +0.3, 95% interval +0.2 to +0.4), on the same 90 answers" in found.sentences[0]
    assert "0.85 (0.78 to 0.92); 0.5 is chance" in found.sentences[1]
    assert "implicit" in heldout_bars(run)


def test_a_supervised_verdict_tells_perplexity_and_right_tokens():
    side = {"prompts": 9, "loss": interval(2.0, 0.1, 9)}
    after = {"loss": interval(1.0, 0.1, 9), "perplexity": interval(2.72, 0.2, 9), "token_accuracy": interval(0.6, 0.1)}
    evaluation = {"baseline": side, "trained": {**side, **after}, "difference": {"loss": interval(-1.0, 0.05, 9)}}
    found = verdict(RunRecord(folder=Path("run"), status="finished", evaluation=evaluation))
    assert found.headline == "The model improved."
    assert "2 → 1 (difference −1, 95% interval −1.05 to −0.95), on the same 9 examples" in found.sentences[0]
    assert found.sentences[1] == "Perplexity after training: 2.72 (2.52 to 2.92)."
    assert "60% (50% to 70%)" in found.sentences[2]


def test_ratings_improve_downwards():
    sides = [{"ratings": 20, "rmse": interval(mean, 0.1)} for mean in (2.0, 1.0)]
    run = RunRecord(
        folder=Path("run"), status="finished", evaluation={"baseline": sides[0], "trained": sides[1], "difference": {}}
    )
    assert verdict(run).headline == "The model improved."


# --- notes ------------------------------------------------------------------------------------------------------------


def test_chosen_answers_that_became_less_likely_are_a_warning_with_its_cures():
    fell = {"logps_chosen": interval(-11.0, 1.0), "logps_rejected": interval(-25.0, 1.0)}
    (note,) = [n for n in observations(pair_run(0.5, 0.7, interval(0.2, 0.05), **fell)) if "less likely" in n.title]
    assert (note.level, note.title) == ("warn", "The chosen answers became less likely")
    assert "by 11 nats (interval 10 to 12) per answer; the rejected ones became less likely by 25 nats" in note.text
    assert "by lowering both" in note.text
    assert "dpop" in note.text
    assert "rpo" in note.text


REASONS = ("by lowering both", "The loss asks for the opposite", "answers that are not in the data")


@catalogue(
    "other, moved, reason",
    [
        (interval(-25.0, 1.0), "became less likely by 25 nats (interval 24 to 26)", 0),
        (interval(-11.1, 1.0), "became less likely by 11.1 nats (interval 10.1 to 12.1)", 0),
        (interval(-3.0, 1.0), "became less likely by 3 nats (interval 2 to 4)", 2),
        (interval(9.0, 1.0), "became likelier by 9 nats (interval 8 to 10)", 1),
        (interval(0.5, 0.4), "became likelier by 0.5 nats (interval 0.1 to 0.9)", 1),
        (interval(0.5, 0.6), "show no certain change (+0.5 nats)", 2),
        (interval(-30.0, 31.0), "show no certain change (−30 nats)", 2),
        ({"mean": -30.0, "low": None, "high": None, "n": 1}, "show no certain change (−30 nats)", 2),
        (None, None, 2),
    ],
)
@catalogue("better, worse", [("chosen", "rejected"), ("desirable", "undesirable")])
def test_the_reason_depends_on_where_the_other_answers_went(better, worse, other, moved, reason):
    fell = {f"logps_{better}": interval(-11.0, 1.0), f"logps_{worse}": other}
    (note,) = [n for n in observations(pair_run(0.5, 0.7, interval(0.2, 0.05), **fell)) if "less likely" in n.title]
    assert note.title == f"The {better} answers became less likely"
    assert moved is None or f"the {worse} ones {moved}" in note.text
    pairs = better == "chosen"
    expected = REASONS[reason if pairs or reason else 2]  # labelled answers have no difference to widen
    assert [said for said in REASONS if said in note.text] == [expected]
    if reason == 1:
        assert ("columns swapped" in note.text, "labels swapped" in note.text) == (pairs, not pairs)
    assert pairs or not any(word in note.text for word in ("dpop", "rpo", "chosen", "pair"))


@pytest.mark.parametrize(("slope", "reason"), [(-2.0, 0), (-1.0, 2), (-0.5, 2), (0.0, 2), (1.0, 1)])
def test_the_steps_of_a_run_tell_the_reason_too(slope, reason):
    run = pair_run(0.5, 0.7, interval(0.2, 0.05))
    moved = [
        {**row, "logps/chosen": -40.0 - row["step"], "logps/rejected": -45.0 + slope * row["step"]}
        for row in run.metrics
    ]
    found = observations(replace(run, metrics=moved, evaluation={}))
    (note,) = [n for n in found if "less likely" in n.title]
    assert [said for said in REASONS if said in note.text] == [REASONS[reason]]


def test_without_held_out_data_the_steps_tell_of_displacement():
    run = pair_run(0.5, 0.7, interval(0.2, 0.05))
    rows = [{**row, "logps/chosen": -40.0 - row["step"]} for row in run.metrics]
    assert "The chosen answers became less likely" in titles(replace(run, metrics=rows, evaluation={}))


def test_chosen_answers_that_became_likelier_are_no_news():
    rose = {"logps_chosen": interval(3.0, 1.0), "logps_rejected": interval(-25.0, 1.0)}
    assert "The chosen answers became less likely" not in titles(pair_run(0.5, 0.7, interval(0.2, 0.05), **rose))


@pytest.mark.parametrize(("held_out", "by_heart"), [(0.7, True), (0.97, False)])
def test_margins_that_grow_when_all_pairs_are_in_order_are_a_warning(held_out: float, by_heart: bool):
    run = pair_run(0.5, 0.9, interval(0.4, 0.05))
    run.evaluation["trained"]["implicit"] = {"accuracy": interval(held_out, 0.02)}
    rows = [{**row, "rewards/accuracies": 1.0, "rewards/margins": 1.2 ** row["step"]} for row in run.metrics]
    (note,) = [n for n in observations(replace(run, metrics=rows)) if "margins keep growing" in n.title]
    assert ("memorising" in note.text) == by_heart


def test_a_held_out_loss_that_rises_while_the_training_loss_falls_is_a_warning():
    rows = [{"step": step, "sft/nll": 2.0 - 0.1 * step} for step in range(1, 11)]
    run = RunRecord(
        folder=Path("run"), status="finished", metrics=rows, evaluation={"difference": {"loss": interval(0.3, 0.1)}}
    )
    assert titles(run) == ["The held-out loss rose while the training loss fell"]
    falling = replace(run, evaluation={"difference": {"loss": interval(-0.3, 0.1)}})
    assert titles(falling) == []


def test_an_entropy_that_falls_on_given_answers_says_nothing():
    assert "The entropy collapsed" not in titles(pair_run(0.5, 0.7, interval(0.2, 0.05)))


def test_a_run_that_samples_nothing_is_not_asked_for_a_check_or_a_sampler():
    claims = " ".join(proof.claim for proof in proofs(pair_run(0.5, 0.7, interval(0.2, 0.05))))
    assert "held-out pairs" in claims
    assert "independent check" not in claims
    assert "sampler" not in claims


# --- groups -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compares", [True, False])
def test_only_an_algorithm_that_compares_answers_is_told_about_groups(compares: bool):
    rows = [{"step": step, "reward": 0.2, "frac_reward_zero_std": 0.9, "loss": 0.5} for step in range(1, 21)]
    event = {"kind": "start", "message": "", "compares_groups": compares}
    run = RunRecord(folder=Path("run"), status="finished", metrics=rows, events=[event])
    page = render(run)
    assert ("Few groups had a signal" in page) == compares
    assert ("groups with signal" in page) == compares
    stream = io.StringIO()
    view = TerminalView(stream)
    view.compares_groups = compares
    view.step(rows[0], 20)
    assert ("signal" in stream.getvalue()) == compares


@catalogue(
    "reward, scores, guess",
    [
        (0.1, (0.0, 1.0), "too hard"),
        (0.9, (0.0, 1.0), "solved already"),
        (0.5, (0.0, 1.0), "too similar"),
        (0.1, None, "too hard"),
        (-39.9, (-80.0, -2.0), None),
        (-39.9, None, None),
        (0.1, (-1.0, 1.0), None),
        (0.9, (0.0, 10.0), None),
        (55.0, None, None),
    ],
)
def test_a_mean_reward_says_how_hard_prompts_are_only_between_0_and_1(reward, scores, guess):
    rows = [{"step": step, "reward": reward, "frac_reward_zero_std": 0.9} for step in range(1, 21)]
    event = {"kind": "start", "message": "", "compares_groups": True}
    sides = {"baseline": {"score_range": list(scores)}, "trained": {"score_range": [0.0, 1.0]}} if scores else {}
    run = RunRecord(folder=Path("run"), status="finished", metrics=rows, events=[event], evaluation=sides)
    (note,) = [n for n in observations(run) if n.title == "Few groups had a signal"]
    assert "More answers per prompt" in note.text
    assert ("At a mean reward of" in note.text) == (guess is not None)
    assert guess is None or guess in note.text


# --- drawn and printed ------------------------------------------------------------------------------------------------


def test_margins_accuracies_and_likelihoods_are_drawn():
    run = pair_run(0.52, 0.71, interval(0.19, 0.06))
    drawn = {chart.title for chart in learning_charts(run)}
    assert {"Reward margin", "Training pairs in order", "Likelihood of the answers", "Worth of the answers"} <= drawn
    bars = heldout_bars(run)
    assert all(label in bars for label in ("pairs", "per token", "implicit"))


def test_a_step_on_pairs_shows_margin_order_and_likelihood(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    stream = io.StringIO()
    TerminalView(stream).step({**pair_run(0.5, 0.7, interval(0.2, 0.05)).metrics[9], "time/step": 1.0}, 20)
    line = "step 10/20  loss 0.49  margin 1  in order 80%  logp chosen -39  grad 1  tokens 1,000  1.0 s  10.0 s left\n"
    assert stream.getvalue().replace("−", "-") == line


def test_the_last_lines_name_labelled_answers_by_their_label():
    stream = io.StringIO()
    TerminalView(stream).finished({"evaluation": {"difference": {"logps_desirable": interval(-11.0, 1.0)}}})
    assert "warning: held-out desirable answers became less likely: −11" in stream.getvalue()


def test_the_last_lines_tell_the_difference_and_warn_of_displacement():
    fell = {"logps_chosen": interval(-11.0, 1.0)}
    run, stream = pair_run(0.52, 0.71, interval(0.19, 0.06), **fell), io.StringIO()
    view = TerminalView(stream)
    view.evaluation("trained", run.evaluation["trained"])
    view.finished({"evaluation": run.evaluation})
    assert stream.getvalue().splitlines() == [
        "held-out trained: accuracy 71% (65% to 77%), margin 1.25, implicit accuracy 74%, 200 pairs",
        "held-out accuracy 52% (46% to 58%) → 71% (65% to 77%), difference +19 points, interval +13 to +25",
        "warning: held-out chosen answers became less likely: −11, interval −12 to −10 nats",
    ]
