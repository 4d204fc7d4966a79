"""The claims of the demonstration, and its text about them."""

from __future__ import annotations

import pytest

from posttrain.config import check
from posttrain.data.split import read_split
from posttrain.tasks.demo import demo_config, verdict


def measured(mean: float, low: float, high: float) -> dict:
    return {"greedy": {"accuracy": {"mean": mean, "low": low, "high": high, "n": 256}}}


def test_the_verdict_gives_both_numbers_with_their_intervals():
    text = verdict({"baseline": measured(0.219, 0.172, 0.273), "trained": measured(0.957, 0.925, 0.976)})
    assert text == (
        "Held-out words sorted correctly: 21.9% [17.2%, 27.3%] before, 95.7% [92.5%, 97.6%] after.\n"
        "256 words that training never saw; 95% intervals in brackets. They do not overlap."
    )


def test_the_verdict_does_not_claim_what_intervals_do_not_show():
    text = verdict({"baseline": measured(0.2, 0.1, 0.3), "trained": measured(0.3, 0.2, 0.4)})
    assert text.endswith("They overlap: nothing is shown.")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_demo_is_a_sound_config_with_disjoint_words(seed):
    config = demo_config(seed=seed, output="runs/demo")
    check(config)
    train, heldout = read_split(config.data, config.seed)
    assert len(heldout) >= config.evaluation.prompts
    assert not {row.values["prompt"] for row in train} & {row.values["prompt"] for row in heldout}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_demo_learns(tmp_path, seed):
    """From at most 0.35 to at least 0.85, with 95% intervals that do not overlap."""
    from posttrain.train.api import train

    evaluation = train(demo_config(seed=seed, output=tmp_path / "run")).evaluation
    before, after = (evaluation[name]["greedy"]["accuracy"] for name in ("baseline", "trained"))
    assert before["mean"] <= 0.35
    assert after["mean"] >= 0.85
    assert before["high"] < after["low"]
