"""docs/claims.md agrees with the results on file for every claim, and its wording follows from the intervals."""

from __future__ import annotations

import json
from typing import Any

import pytest
from benchmarks.claims.catalogue import CLAIMS, Number
from benchmarks.claims.page import PAGE, PICTURES, RESULT, ROOT, judged, page_of, picture

from posttrain.lab.experiments.compare.design import read_design

RESULTS: dict[str, Any] = json.loads(RESULT.read_text())["claims"] if RESULT.exists() else {}
measured = pytest.mark.skipif(not RESULTS, reason="no claim has been measured: there are no results on file")


@measured
def test_the_page_and_its_pictures_are_those_of_the_results_on_file():
    assert page_of(RESULTS) == PAGE.read_text()
    for claim in CLAIMS:
        if claim.key in RESULTS:
            assert picture(RESULTS[claim.key], claim) == (PICTURES / f"claim-{claim.key}.svg").read_text()


@measured
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.key)
def test_each_claim_is_on_the_page_whether_it_was_measured_or_not(claim):
    (line,) = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| [{claim.says}]")]
    assert ("not measured" in line) == (claim.key not in RESULTS)


@measured
@pytest.mark.parametrize("claim", [claim for claim in CLAIMS if claim.key in RESULTS], ids=lambda claim: claim.key)
def test_the_results_are_those_of_the_file_as_it_is_now(claim):
    design = read_design(ROOT / "benchmarks" / "claims" / f"{claim.key}.yaml")
    now = json.loads(json.dumps(design.record()))
    assert design.base["data"]["train"].startswith("task:"), "generated tasks have held-out rows of their own"
    assert RESULTS[claim.key]["design"] | {"settings": {"data.hold_out": "prompts"}} == now


@measured
def test_the_page_says_what_was_changed_after_trial_runs_and_what_the_seconds_are_worth():
    page = PAGE.read_text()
    sections = dict(zip([claim.key for claim in CLAIMS], page.split("\n## ")[1:], strict=True))
    for claim in CLAIMS:
        (line,) = [line for line in page.splitlines() if line.startswith(f"| [{claim.says}]")]
        assert ("** †" in line) == bool(claim.changed)
        assert (f"† Changed after trial runs: {claim.changed}." in sections[claim.key]) == bool(claim.changed)
    assert (sum(bool(claim.changed) for claim in CLAIMS), len(CLAIMS)) == (5, 7)
    assert "**† Five of the seven settings were changed after trial runs**" in page
    target = read_design(ROOT / "benchmarks" / "claims" / "dynamic_sampling.yaml").target
    assert f"The target is {target:.0%} held-out accuracy." in sections["dynamic_sampling"]
    busy = "not comparable" in RESULTS["ppo_time"]["conditions"]["seconds_note"]
    assert ("the factor is rough" in sections["ppo_time"]) == busy


def result(mean: float, low: float, high: float, p: float, *, ratio: bool) -> dict[str, Any]:
    pair = {"first": "a", "second": "b", "mean": mean, "low": low, "high": high, "p_holm": p, "seeds": 5}
    return {
        "design": {"confidence": 0.95},
        "pairs": [],
        "measures": {"x": {"as_ratio": ratio}},
        "measure_pairs": {"x": [pair]},
    }


@pytest.mark.parametrize(
    ("first", "says", "pair", "expected"),
    [
        ("a", "more", (2.0, 1.5, 2.5, 0.01, True), "holds here"),
        ("b", "less", (2.0, 1.5, 2.5, 0.01, True), "holds here"),
        ("b", "more", (2.0, 1.5, 2.5, 0.01, True), "does not hold here"),
        ("a", "less", (-0.1, -0.2, 0.1, 0.3, False), "not shown here"),
        ("a", "less", (-0.3, -0.4, -0.2, 0.01, False), "holds here"),
        ("b", "about half", (2.0, 1.9, 2.1, 0.001, True), "holds here"),
        ("b", "about half", (2.0, 1.2, 3.4, 0.001, True), "not shown here"),
        ("b", "about half", (1.2, 1.1, 1.3, 0.001, True), "does not hold here"),
    ],
)
def test_a_claim_is_judged_by_its_interval(first, says, pair, expected):
    *numbers, ratio = pair
    number = Number("x", first, "b" if first == "a" else "a", says)
    assert judged(result(*numbers, ratio=ratio), number) == expected
