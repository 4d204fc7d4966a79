"""Text and pictures of means whose interval is unknown: a single value, or equal values, show no spread."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from posttrain.export.card import _shown
from posttrain.report.charts import check_bars
from posttrain.report.others import kept, others_sentences
from posttrain.report.spans import Span, show_change, show_span
from posttrain.report.store import read_run

UNKNOWN = {"mean": 5.0, "low": None, "high": None, "n": 4}
"""An interval as evaluation.json holds it."""


def on_other_prompts() -> str:
    others = {"prompts": 1, "max_drift": 0.1, "unchanged": 0.5, "drift": UNKNOWN}
    return " ".join(others_sentences({"others": others}))


def in_a_picture(folder) -> str:
    sides = dict.fromkeys(("baseline", "trained"), UNKNOWN)
    return check_bars(replace(read_run(folder), evaluation={"check": {"long": sides}}))


@pytest.mark.parametrize("low", [-math.inf, 0.0], ids=["both", "one"])
@pytest.mark.parametrize(
    "show",
    [lambda span: show_span("score", span), lambda span: show_change("score", span), _shown],
    ids=["a mean", "a change", "in a card"],
)
def test_limits_that_are_not_known_are_not_printed(show, low):
    text = show(Span(5.0, low, math.inf, 4))
    assert "no interval" in text
    assert "inf" not in text


def test_nor_are_those_of_other_prompts_and_of_pictures(tmp_path):
    for text in (on_other_prompts(), in_a_picture(tmp_path)):
        assert "no interval" in text
        assert "inf" not in text
        assert "e+0" not in text


@pytest.mark.parametrize(("drift", "within"), [(0.0, True), (0.05, False), (0.2, False)])
def test_only_an_unchanged_model_is_within_the_bound_without_an_interval(drift, within):
    others = {"prompts": 3, "max_drift": 0.1, "drift": UNKNOWN | {"mean": drift}}
    assert kept({"others": others}) == within
