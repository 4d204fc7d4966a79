"""Metrics: reduced by their kind, under TRL's names, compared with numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.experience.metrics import component_metrics, length_metrics, reward_metrics
from posttrain.train.metrics import MetricLog, memory_metrics
from posttrain.types import Completion, Experience, Max, Mean, Min

NAN = float("nan")


def completion(length: int, finish_reason: str = "eos") -> Completion:
    return Completion(
        ids=(5,) * length, logprobs=(-0.5,) * length, versions=(0,) * length, finish_reason=finish_reason, text=""
    )


def measured(rewards, *, parts=None, scored=None, groups=None) -> dict[str, float]:
    rewards_PG = torch.tensor(rewards)
    experience = Experience.from_rewards(
        rewards_PG,
        completion_mask_BT=torch.ones(rewards_PG.numel(), 1),
        scored_PG=None if scored is None else torch.tensor(scored),
    )
    log = MetricLog()
    groups = groups or [[completion(1) for _ in group] for group in rewards]
    log.add(reward_metrics(experience.rewards_PG, experience.scored_PG) | component_metrics(parts or {}))
    log.add(length_metrics([one for group in groups for one in group]))
    return log.reduce()


def test_a_mean_is_the_quotient_of_sums_and_not_the_mean_of_means():
    log = MetricLog()
    log.add({"kl": Mean(2.0, 1.0), "ratio_max": Max(1.5), "ratio_min": Min(0.5)})
    log.add({"kl": Mean(3.0, 4.0), "ratio_max": Max(1.2), "ratio_min": Min(0.7)})
    assert log.reduce() == {"kl": 1.0, "ratio_max": 1.5, "ratio_min": 0.5}


@given(st.lists(st.tuples(st.integers(-100, 100), st.integers(0, 100)), min_size=1, max_size=12), st.integers(1, 12))
def test_the_split_into_microbatches_does_not_change_a_metric(values, size):
    whole, split = MetricLog(), MetricLog()
    for numerator, denominator in values:
        whole.add({"a": Mean(numerator, denominator), "b": Max(numerator), "c": Min(denominator)})
    for start in range(0, len(values), size):
        part = MetricLog()
        for numerator, denominator in values[start : start + size]:
            part.add({"a": Mean(numerator, denominator), "b": Max(numerator), "c": Min(denominator)})
        split.add(part.merged)
    assert repr(whole.reduce()) == repr(split.reduce())  # repr: a mean over nothing is NaN in both


def test_a_mean_over_nothing_is_nan_and_not_0():
    log = MetricLog()
    log.add({"kl": Mean(0.0, 0.0)})
    assert math.isnan(log.reduce()["kl"])


def test_a_name_that_reduces_in_two_ways_is_refused():
    log = MetricLog()
    log.add({"kl": Mean(1.0, 1.0)})
    with pytest.raises(TypeError, match=r"kl is Mean\(.*\) here and Max\(.*\) there: a metric reduces in one way"):
        log.add({"kl": Max(1.0)})


def test_adding_to_a_log_changes_no_metrics_that_were_given():
    first = {"kl": Mean(1.0, 1.0)}
    log = MetricLog()
    log.add(first)
    log.add({"kl": Mean(3.0, 1.0)})
    assert first == {"kl": Mean(1.0, 1.0)}


# --- rewards ---------------------------------------------------------------------------------------------------------


def test_the_statistics_of_the_reward_of_two_groups():
    """Group 1: mean 1/4, std 1/2 (dividing by G - 1). Group 2: no spread."""
    found = measured([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    assert found["reward"] == 0.625
    assert found["reward_std"] == pytest.approx(0.25)
    assert found["frac_reward_zero_std"] == 0.5
    assert found["unscored_fraction"] == 0.0


def test_an_unscored_answer_counts_in_no_statistic_but_its_own():
    found = measured([[1.0, NAN, 0.0, NAN], [1.0, NAN, NAN, NAN]])
    assert found["reward"] == pytest.approx(2 / 3)
    assert found["reward_std"] == pytest.approx(math.sqrt(0.5)), "only the first group has two scored answers"
    assert found["frac_reward_zero_std"] == 0.5
    assert found["unscored_fraction"] == 0.625


def test_rewards_that_differ_by_rounding_only_have_no_spread():
    assert measured([[0.1 + 0.2, 0.3]])["frac_reward_zero_std"] == 1.0


def test_with_one_answer_per_prompt_the_spread_is_that_of_the_step():
    found = measured([[1.0], [0.0], [0.0], [0.0]])
    assert found["reward_std"] == pytest.approx(0.5)
    assert "frac_reward_zero_std" not in found


def test_each_reward_has_its_own_mean_and_std_over_the_answers_that_it_applies_to():
    parts = {"math": [[1.0, 0.0], [1.0, 0.0]], "brevity": [[None, 0.5], [None, None]], "never": [[None] * 2] * 2}
    found = measured([[1.0, 0.5], [1.0, 0.0]], parts=parts)
    assert found["rewards/math/mean"] == 0.5
    assert found["rewards/math/std"] == pytest.approx(math.sqrt(1 / 3))
    assert found["rewards/brevity/mean"] == 0.5
    assert math.isnan(found["rewards/brevity/std"])
    assert math.isnan(found["rewards/never/mean"])


def test_nothing_scored_gives_nan_and_an_unscored_fraction_of_1():
    found = measured([[NAN, NAN]])
    assert math.isnan(found["reward"])
    assert math.isnan(found["reward_std"])
    assert (found["frac_reward_zero_std"], found["unscored_fraction"]) == (1.0, 1.0)


# --- lengths ---------------------------------------------------------------------------------------------------------


def test_lengths_count_every_token_and_the_terminated_ones_apart():
    groups = [[completion(2), completion(4, "stop")], [completion(8, "length"), completion(0)]]
    found = measured([[0.0, 1.0], [0.0, 1.0]], groups=groups)
    assert {name.removeprefix("completions/"): found[name] for name in found if name.startswith("completions/")} == {
        "mean_length": 3.5,
        "min_length": 0,
        "max_length": 8,
        "clipped_ratio": 0.25,
        "mean_terminated_length": 2.0,
        "min_terminated_length": 0.0,
        "max_terminated_length": 4.0,
    }


def test_when_all_answers_are_truncated_the_terminated_length_is_nan():
    groups = [[completion(8, "length"), completion(8, "length")]]
    assert math.isnan(measured([[0.0, 1.0]], groups=groups)["completions/mean_terminated_length"])


# --- memory ----------------------------------------------------------------------------------------------------------


def test_memory_is_in_gigabytes_and_never_above_its_peak():
    found = {name: float(metric) for name, metric in memory_metrics().items()}
    assert 0.05 < found["memory/rss_gb"] <= found["memory/peak_rss_gb"] * 1.01 < 200


def test_memory_sees_a_block_of_200_megabytes():
    before = float(memory_metrics()["memory/rss_gb"])
    block = torch.ones(50_000_000)
    assert float(memory_metrics()["memory/rss_gb"]) - before > 0.15
    del block
