"""The analysis of a sweep: the knob that turns success into collapse, and allowed claims about best and default."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.sweeping.page import picture
from tests.catalogue import catalogue, few

from posttrain.lab.experiments.sweep.analysis import boundaries, importance
from posttrain.lab.experiments.sweep.confirm import Confirmation, SeedScore
from posttrain.lab.experiments.sweep.knobs import parse_knob
from posttrain.lab.experiments.sweep.page import knob_chart, knobs_of, render
from posttrain.lab.experiments.sweep.results import SweepResult, best_of
from posttrain.lab.experiments.sweep.settings import SweepSettings
from posttrain.lab.experiments.sweep.study import TrialRecord
from posttrain.report.spans import Span, show_span
from posttrain.tasks.demo import demo_config

pytest.importorskip("optuna", reason="the extra `sweep` is not installed")

KNOBS = tuple(
    map(
        parse_knob,
        ("train.learning_rate=log(1e-5,1e-1)", "algorithm.kl_coef=choice(0,0.1)", "sampling.group_size=int(2,16)"),
    )
)


def trial(number: int, rate: float, kl: float, group: int, score: float | None, **more) -> TrialRecord:
    values = {"train.learning_rate": rate, "algorithm.kl_coef": kl, "sampling.group_size": group}
    outcome = more.pop("outcome", "finished" if score is not None else "collapsed")
    course = ((0, 0.2), (10, score)) if score is not None else ()
    return TrialRecord(number=number, values=values, outcome=outcome, score=score, course=course, **more)


def trials_with_an_edge(count: int = 16) -> list[TrialRecord]:
    """Return trials with rates from 1e-5 to 1e-1. Those above 1e-2 collapse, whatever the other settings."""
    dice = random.Random(0)
    rates = [10 ** (-5 + 4 * n / (count - 1)) for n in range(count)]
    return [
        trial(n, rate, dice.choice([0, 0.1]), dice.randint(2, 16), None if rate > 1e-2 else 0.3 + 0.02 * n)
        for n, rate in enumerate(rates)
    ]


def test_the_knob_that_decides_is_found_with_its_edge():
    first, *others = boundaries(KNOBS, trials_with_an_edge())
    assert first.key == "train.learning_rate"
    assert first.inside is not None
    assert first.inside[0] <= 1e-2 < first.inside[1]
    assert first.collapsed_beyond == first.trials_beyond == 4
    assert first.collapsed_within == 0
    assert first.chance < 0.05
    assert first.sentence.startswith("This setting separates success from collapse: train.learning_rate above")
    assert all(boundary.chance > first.chance for boundary in others)


def test_a_choice_can_be_what_decides():
    told = [trial(n, 1e-3, 0.1 if n % 2 else 0, 4, None if n % 2 else 0.5) for n in range(12)]
    (first,) = boundaries(KNOBS, told)
    assert (first.key, first.beyond, first.collapsed_beyond, first.collapsed_within) == (
        "algorithm.kl_coef",
        "= 0.1",
        6,
        0,
    )


def test_collapses_that_no_knob_explains_are_not_explained():
    dice = random.Random(1)
    told = [
        trial(n, 10 ** dice.uniform(-5, -1), dice.choice([0, 0.1]), dice.randint(2, 16), None if n % 4 == 0 else 0.5)
        for n in range(16)
    ]
    assert all("not shown" in boundary.sentence for boundary in boundaries(KNOBS, told))


@pytest.mark.slow
def test_under_chance_alone_a_boundary_is_claimed_in_about_one_sweep_of_twenty():
    claimed = 0
    for seed in range(40):
        dice = random.Random(seed)
        told = [
            trial(n, 10 ** dice.uniform(-5, -1), dice.choice([0, 0.1]), dice.randint(2, 16), dice.choice([None, 0.5]))
            for n in range(10)
        ]
        claimed += any(boundary.chance < 0.05 for boundary in boundaries(KNOBS, told, shuffles=100))
    assert claimed <= 6  # 2 are expected


@pytest.mark.parametrize("score", [None, 0.5])
def test_all_collapsed_and_none_collapsed_have_no_boundary(score):
    assert boundaries(KNOBS, [trial(n, 1e-3, 0, 4, score) for n in range(6)]) == ()


def test_failed_trials_say_nothing_about_collapse():
    told = [*trials_with_an_edge(), trial(99, 1e-5, 0, 2, None, outcome="failed")]
    assert boundaries(KNOBS, told) == boundaries(KNOBS, trials_with_an_edge())


def test_the_setting_that_makes_the_score_is_the_important_one_whichever_way_is_better():
    dice = random.Random(3)
    told = []
    for n in range(24):
        rate = 10 ** dice.uniform(-5, -1)
        score = None if rate > 0.03 else -abs(math.log10(rate) + 3)
        told.append(trial(n, rate, dice.choice([0, 0.1]), dice.randint(2, 16), score))
    found = importance(KNOBS, told)
    assert max(found, key=lambda key: found[key]) == "train.learning_rate"
    assert sum(found.values()) == pytest.approx(1)
    losses = [replace(t, score=None if t.score is None else -t.score) for t in told]
    assert importance(KNOBS, losses, -1.0) == pytest.approx(found)


def test_few_trials_or_equal_ones_have_no_importance():
    assert importance(KNOBS, trials_with_an_edge(7)) == {}
    assert importance(KNOBS, [trial(n, 1e-3, 0, 2 + n, 0.5) for n in range(12)]) == {}


def seeds(default: list[float | None], best: list[float | None], measure: str = "score") -> Confirmation:
    scores = [
        SeedScore(side, 1000 + n, value, collapsed=value is None)
        for side, values in (("best", best), ("default", default))
        for n, value in enumerate(values)
    ]
    return Confirmation(measure=measure, scores=tuple(scores))


@catalogue(
    "default, best, measure, verdict",
    [
        ([0.40, 0.42, 0.41, 0.39], [0.60, 0.61, 0.62, 0.60], "score", 1),
        ([0.40, 0.42, 0.41, 0.39], [0.60, 0.20, 0.62, 0.30], "score", 0),
        ([0.60, 0.61, 0.62, 0.60], [0.40, 0.42, 0.41, 0.39], "score", -1),
        ([0.60, 0.61, 0.62, 0.60], [0.40, 0.42, 0.41, 0.39], "loss", 1),
        ([0.40], [0.60], "score", 0),
        ([0.40, 0.42, 0.41, 0.39], [0.60, 0.61, 0.62, None], "score", 0),
        ([0.40, 0.42, 0.41, None], [0.60, 0.61, 0.62, None], "score", 1),
        ([0.60, 0.61, 0.62, None], [0.40, 0.42, 0.41, 0.39], "score", 0),
    ],
)
def test_better_is_said_where_the_paired_interval_shows_it_and_the_best_one_collapses_no_oftener(
    default, best, measure, verdict
):
    assert seeds(default, best, measure).verdict == verdict


def test_the_difference_is_paired_by_seed():
    """By hand: the differences 0.1, 0.2, 0.3 have mean 0.2 and s = 0.1, and t(2) = 4.3027."""
    mean, low, high, n = seeds([0.1, 0.5, 0.2], [0.2, 0.7, 0.5]).difference
    assert (mean, low, high, n) == (
        pytest.approx(0.2),
        pytest.approx(-0.04842, abs=1e-4),
        pytest.approx(0.44842, abs=1e-4),
        3,
    )


@catalogue("count", [2, 3, 5, 8])
@catalogue("apart", [0.0625, 0.1, 0.3, -0.1, 0.0])
def test_equal_differences_prove_nothing(count: int, apart: float):
    """Shares of few rows come in steps, so equal differences are no rarity, also where rounding hides them."""
    default = [0.2 + 0.05 * n for n in range(count)]
    found = seeds(default, [score + apart for score in default])
    assert found.verdict == 0
    assert found.difference[1:3] == (-math.inf, math.inf)
    assert found.to_json()["difference"]["low"] is None
    assert "with every seed, so that there is no interval" in " ".join(
        result(trials_with_an_edge(2), found).sentences()
    )


@pytest.mark.parametrize(("rows", "count"), few([(16, 2), (64, 2), (16, 3), (32, 5)], (16, 2), (32, 5)))
def test_equally_good_sides_are_rarely_told_apart(rows: int, count: int):
    dice, times = random.Random(rows + count), 1000
    share = lambda: sum(dice.random() < 0.5 for _ in range(rows)) / rows  # noqa: E731
    told = [seeds([share() for _ in range(count)], [share() for _ in range(count)]).verdict for _ in range(times)]
    assert sum(map(abs, told)) <= 0.05 * times + 3 * math.sqrt(0.05 * 0.95 * times)


def result(trials: list[TrialRecord], confirmation: Confirmation | None = None, **more) -> SweepResult:
    settings = SweepSettings(given=demo_config(steps=50).model_dump(mode="json", exclude_unset=True), knobs=KNOBS)
    return SweepResult(
        folder=Path("sweeps/test"),
        settings=settings,
        measure="score",
        trials=tuple(trials),
        best=best_of(trials, "score"),
        importance={},
        boundaries=boundaries(KNOBS, trials),
        confirmation=confirmation,
        fresh_rows=more.get("fresh_rows", False),
    )


@pytest.mark.slow
def test_the_sentences_claim_no_more_than_the_interval_and_name_the_bias_of_choosing():
    told = trials_with_an_edge()
    better = " ".join(result(told, seeds([0.4, 0.42, 0.41], [0.6, 0.61, 0.62])).sentences())
    assert "which is better than the default" in better
    assert "therefore too high by luck" in better
    assert "The held-out rows are those used for the selection" in better
    unsure = " ".join(result(told, seeds([0.4, 0.42, 0.41], [0.6, 0.2, 0.5]), fresh_rows=True).sentences())
    assert "does not show that it is better" in unsure
    assert "Each of them draws new held-out rows" in unsure
    fell = " ".join(result(told, seeds([0.4, 0.42, 0.41], [0.6, 0.61, None])).sentences())
    assert "Collapsed: 1 of 3 runs of the best configuration, 0 of 3 of the default." in fell


@pytest.mark.parametrize(
    ("measure", "untrained", "improved"),
    [("score", 0.0, True), ("score", 5.0, False), ("loss", 5.0, True), ("loss", 0.0, False)],
)
def test_the_score_before_training_stands_beside_the_best(measure, untrained, improved):
    before = Span(untrained, untrained - 1, untrained + 1, 8)
    found = replace(result(trials_with_an_edge()), measure=measure, untrained=before)
    said = found.sentences()[1]
    assert said.startswith(f"Before training, its model had {show_span(measure, before)}")
    assert ("no better" not in said) == improved
    assert found.to_json()["untrained"] == untrained


def test_a_best_one_that_loses_more_runs_is_not_called_better_whatever_lost_them():
    shown = seeds([0.4, 0.42, 0.41, 0.43], [0.6, 0.61, 0.62, 0.61])
    assert shown.verdict == 1
    first, *others = shown.scores
    killed = SeedScore(first.side, first.seed, None, reason="its process was ended by SIGKILL")
    missing = replace(shown, scores=(killed, *others))
    assert missing.verdict == 0
    said = " ".join(result(trials_with_an_edge(), missing).sentences())
    assert "does not show that it is better" in said
    assert "Failed otherwise: 1 of 4 runs of the best configuration, 0 of 4 of the default." in said


def test_secrets_are_in_no_result():
    found = result(trials_with_an_edge())
    given = {
        **found.settings.given,
        "rewards": [{"name": "exact_match", "settings": {"api_key": "sk-1234567890abcdef"}}],
    }
    text = json.dumps(replace(found, settings=replace(found.settings, given=given)).to_json())
    assert "1234567890abcdef" not in text


def test_a_default_that_wins_and_a_sweep_without_a_finished_trial_are_said_to_be_that():
    default = trial(0, 5e-4, 0, 8, 0.9, is_default=True)
    assert "no tried configuration beats it" in " ".join(result([default, trial(1, 1e-3, 0, 8, 0.5)]).sentences())
    assert "there is no best configuration" in result([trial(0, 1e-3, 0, 8, None)]).sentences()[0]
    alone = " ".join(result([trial(0, 1e-3, 0, 8, 0.5)]).sentences())
    assert "so it is not shown to beat the default" in alone
    assert "the fresh seeds played no part" not in alone


def test_the_page_and_the_picture_show_every_trial_and_nothing_acts_on_them():
    told = [*trials_with_an_edge(), trial(50, 1e-4, 0, 2, None, outcome="failed", reason="<script>alert(1)</script>")]
    found = result(told, seeds([0.4, 0.42], [0.6, 0.61])).to_json()
    page = render(found, "train: <b>")
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "script-src 'sha256-" in page
    assert page.count("<tr>") == 1 + len(told) + 1 + 2
    assert 'href="#trials"' in page
    assert page.count('<th scope="col">') == 4 + 5 + len(KNOBS)
    for knob in knobs_of(found):
        chart = knob_chart(found, knob)
        assert chart.count("<title>") == len(told) - 1  # the failed trial has no place on it
        assert "default" in chart
    assert knob_chart(found, KNOBS[0]).count('class="band') == 1  # marks the range where trials collapse
    assert picture(found).count("<svg") == 1 + len(KNOBS)
