"""docs/sweep.md and its picture agree with the sweep on file, and claim no more than its numbers show."""

from __future__ import annotations

import json
from typing import Any

import pytest
from benchmarks.sweeping import page

from posttrain.lab.experiments.sweep.confirm import Confirmation, SeedScore

RESULT: dict[str, Any] = json.loads(page.FILE.read_text()) if page.FILE.exists() else {}
pytestmark = pytest.mark.skipif(not RESULT, reason="the sweep of the demonstration has not been run")


def test_the_page_and_its_picture_are_those_of_the_results_on_file():
    assert page.block(RESULT) in page.PAGE.read_text()
    assert page.picture(RESULT) == page.PICTURE.read_text()


def test_no_trial_of_the_killed_sweep_is_missing_and_the_first_is_the_default():
    assert [trial["number"] for trial in RESULT["trials"]] == list(range(RESULT["settings"]["trials"]))
    assert not any(trial["outcome"] == "running" for trial in RESULT["trials"])
    assert RESULT["trials"][0]["is_default"]


def test_what_is_said_of_best_and_default_follows_from_the_scores_on_file():
    told = RESULT["confirmation"]
    if told is None:
        assert RESULT["best"] is None or RESULT["best"]["is_default"]
        return
    found = Confirmation(measure=told["measure"], scores=tuple(SeedScore(**score) for score in told["scores"]))
    assert found.verdict == told["verdict"]
    says = " ".join(RESULT["sentences"])
    assert ("which is better than the default" in says) == (told["verdict"] == 1)
