"""The mismatch of a step, and the alarm over its values."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from tests.catalogue import few
from tests.engines.second_device import DEVICE, second_device
from tests.tiny import tiny_model, write_prompts

import posttrain as pt
from posttrain.algorithms.reward_model import score_metrics
from posttrain.config import RunConfig
from posttrain.train.metrics import MetricLog
from posttrain.train.mismatch import mismatch_metrics
from posttrain.types import Batch, Outputs, Percentile
from posttrain.watch.bisection import Cause
from posttrain.watch.mismatch import Mismatch
from posttrain.watch.records import Step
from posttrain.watch.rounding import LEVELS, Level
from posttrain.watch.watch import Watch

QUIET = (1e-6, 2e-5)
LOUD = (2e-3, 9e-3)


def alarms_of(course, alarm=None, *, first=1):
    """The alarms of a course, which has (mean, p99) of each step."""
    alarm = alarm or Mismatch.of(torch.float32)
    steps = [
        Step(number=number, metrics={"mismatch/fresh_mean": mean, "mismatch/fresh_p99": p99})
        for number, (mean, p99) in enumerate(course, start=first)
    ]
    return [found for step in steps if (found := alarm.observe(step)) is not None]


def test_three_steps_in_a_row_above_the_level_of_the_precision_are_an_alarm():
    [alarm] = alarms_of([QUIET] * 6 + [LOUD] * 3)
    assert (alarm.kind, alarm.step, alarm.change_point) == ("mismatch", 9, 7)
    assert (
        "by 0.002 nats on average and one in a hundred by more than 0.009 (rounding explains 0.001; before, the mean "
        "was 1e-06" in alarm.message
    )
    bfloat16 = Mismatch.of(torch.bfloat16)
    assert not alarms_of([(0.02, 0.13)] * 20, bfloat16), "values as measured for bfloat16"
    assert alarms_of([(0.1, 0.5)] * 3, bfloat16, first=21)


def test_what_rounding_explains_grows_as_logits_are_divided_by_a_temperature_below_one():
    assert Mismatch.of(torch.bfloat16, temperature=0.5).level == Level(p99=0.6, mean=0.1)
    assert Mismatch.of(torch.bfloat16, temperature=2.0).level == LEVELS[torch.bfloat16]
    course = [(0.04, 0.26)] * 3 + [(0.09, 0.55)] * 3  # the values of temperature 1, divided by 0.5
    assert alarms_of(course, Mismatch.of(torch.bfloat16))
    assert not alarms_of(course, Mismatch.of(torch.bfloat16, temperature=0.5))


def test_a_run_watches_at_the_temperature_that_it_draws_at():
    sections = {"model": {"path": "m"}, "algorithm": "grpo", "data": {"train": "p.jsonl"}, "train": {"steps": 1}}
    config = RunConfig.model_validate(sections | {"rewards": ["repetition"], "sampling": {"temperature": 0.5}})
    watch, _ = Watch.of(config, None, [], torch.bfloat16)
    assert watch.mismatch.level == Level(p99=0.6, mean=0.1)


@pytest.mark.parametrize("course", [[QUIET, LOUD, LOUD] * 8, [QUIET] * 40, [(3e-5, 9e-4)] * 40])
def test_odd_steps_and_rounding_are_none(course):
    assert not alarms_of(course)


def test_a_mean_that_grows_three_times_is_an_alarm_below_the_level_of_the_percentile():
    grown = [(0.02, 0.13)] * 5 + [(0.059, 0.28)] * 5
    assert not alarms_of(grown, Mismatch.of(torch.bfloat16))
    assert alarms_of(grown + [(0.061, 0.29)] * 3, Mismatch.of(torch.bfloat16))[0].change_point == 11
    assert not alarms_of([(1e-7, 2e-6)] * 5 + [(9e-5, 9e-4)] * 9), "ninety times almost nothing"


def test_the_drift_is_that_of_medians_so_that_an_odd_step_does_not_move_it():
    alarm = Mismatch.of(torch.bfloat16)
    alarms_of([(0.02, 0.1)] * 4, alarm)
    assert not alarm.metrics(), "not known yet"
    alarms_of([(0.02, 0.1)] + [(0.03, 0.1)] * 4 + [(7.0, 9.0)], alarm)
    assert alarm.metrics() == {"mismatch/drift": pytest.approx(1.5)}


def test_of_a_few_tokens_the_mean_has_to_be_above_the_level():
    few = math.nan
    assert alarms_of([(0.4, few)] * 3, Mismatch.of(torch.bfloat16))
    assert not alarms_of([(0.2, few)] * 9, Mismatch.of(torch.bfloat16)), "rounding of three tokens"


def test_steps_without_fresh_tokens_neither_count_nor_break_a_row():
    [alarm] = alarms_of([LOUD, LOUD, (math.nan, math.nan), LOUD])
    assert (alarm.step, alarm.change_point) == (4, 1)


def test_both_sides_are_asked_before_the_update_of_the_third_step_only():
    asked, alarm = [], Mismatch.of(torch.float32)

    def examine(level):
        asked.append(level.p99)
        return Cause(kind="cache", text="kept", fix="Empty it.", evidence={"largest": 0.5})

    found = []
    for number, (mean, p99) in enumerate([QUIET, LOUD, QUIET, LOUD, LOUD, LOUD], start=1):
        alarm.before_update(examine)
        metrics = {"mismatch/fresh_mean": mean, "mismatch/fresh_p99": p99}
        found.append((alarm.observe(Step(number=number, metrics=metrics)), len(asked)))
    assert [count for _, count in found] == [0, 0, 0, 0, 0, 1]
    alarm.before_update(examine)
    assert len(asked) == 1, "the alarm was reported already"
    told = found[-1][0]
    assert (told.message.endswith("Cause: cache: kept"), told.fix) == (True, "Empty it.")
    assert (told.evidence["cause"], told.evidence["largest"]) == ("cache", 0.5)


def test_where_both_sides_agree_when_they_are_asked_there_is_no_alarm_until_three_more_steps_are_high():
    alarm, kinds, found = Mismatch.of(torch.float32), ["none", "unknown"], []
    for number in range(1, 7):
        alarm.before_update(lambda level: Cause(kind=kinds.pop(0), text="asked"))
        metrics = {"mismatch/fresh_mean": LOUD[0], "mismatch/fresh_p99": LOUD[1]}
        found.append(alarm.observe(Step(number=number, metrics=metrics)))
    assert found[:5] == [None] * 5
    assert (found[5].step, found[5].change_point, found[5].evidence["cause"]) == (6, 4, "unknown")


def test_a_resumed_run_fires_where_the_other_would_have():
    course = [QUIET] * 5 + [LOUD] * 3
    for cut in range(len(course)):
        before, after = Mismatch.of(torch.float32), Mismatch.of(torch.float32)
        alarms_of(course[:cut], before)
        after.load_state(json.loads(json.dumps(before.state())))
        [alarm] = alarms_of(course[cut:], after, first=cut + 1)
        assert (alarm.step, alarm.change_point) == (8, 6)


# --- the mismatch of a step ------------------------------------------------------------------------------------------


def batch_of(gaps, versions, version, **changes):
    """A batch of one row in which the sampler reports 0 and the trainer `gaps`."""
    gaps_1T = torch.tensor([gaps])
    given = {
        "completion_mask_BT": torch.ones_like(gaps_1T, dtype=torch.bool),
        "old_logprobs_BT": gaps_1T,
        "sampling_logprobs_BT": torch.zeros_like(gaps_1T),
        "versions_BT": torch.tensor([versions]),
        "version": version,
        "groups_B": torch.zeros(1, dtype=torch.long),
    }
    return Batch(**(given | changes))


def reduced(*parts):
    log = MetricLog()
    for part in parts:
        log.add(part)
    return log.reduce()


def test_tokens_of_older_weights_are_told_apart():
    batch = batch_of([-0.25, 0.5, -2.0, 4.0], [3, 3, 2, 1], 3)
    metrics = reduced(mismatch_metrics(Outputs(logprobs_BT=torch.zeros(1, 4)), batch))
    assert metrics["mismatch/fresh_mean"] == 0.375
    assert metrics["mismatch/fresh_max"] == 0.5
    assert metrics["mismatch/stale_mean"] == 3
    assert metrics["sampling/sampling_logp_difference/mean"] == 1.6875


def test_tokens_that_are_not_trained_and_numbers_that_are_missing_do_not_count():
    mask = torch.tensor([[True, True, False, True]])
    said = torch.tensor([[0.0, 0.0, 0.0, math.nan]])
    batch = batch_of([-0.25, 0.75, 8.0, 1.0], [0] * 4, 0, completion_mask_BT=mask, sampling_logprobs_BT=said)
    assert reduced(mismatch_metrics(Outputs(logprobs_BT=torch.zeros(1, 4)), batch))["mismatch/fresh_mean"] == 0.5


def test_once_weights_have_moved_only_what_was_scored_before_can_be_compared():
    batch = batch_of([0.5], [0], 0)
    now = Outputs(logprobs_BT=torch.ones(1, 1))
    assert reduced(mismatch_metrics(now, batch, moved=True))["mismatch/fresh_mean"] == 0.5
    bare = batch_of([0.5], [0], 0, old_logprobs_BT=None)
    assert reduced(mismatch_metrics(now, bare))["mismatch/fresh_mean"] == 1
    assert "mismatch/fresh_mean" not in mismatch_metrics(now, bare, moved=True)


def test_with_dropout_only_what_was_scored_without_it_can_be_compared():
    now = Outputs(logprobs_BT=torch.ones(1, 1))
    scored = mismatch_metrics(now, batch_of([0.5], [0], 0), dropout=True)
    assert reduced(scored)["mismatch/fresh_mean"] == 0.5
    found = mismatch_metrics(now, batch_of([0.5], [0], 0, old_logprobs_BT=None), dropout=True)
    assert not [name for name in found if name.startswith("mismatch/")], list(found)
    assert reduced(found)["sampling/sampling_logp_difference/mean"] == 1


@pytest.mark.parametrize(("dropout", "told"), few([(0.0, True), (0.5, False)], (0.5, False)))
def test_a_run_whose_updates_drop_and_that_scores_nothing_before_them_says_nothing_of_its_sampler(
    tmp_path, dropout, told
):
    run = pt.train(
        {
            "model": {"path": str(tiny_model(tmp_path / "model")), "device": "cpu"},
            "algorithm": {"name": "grpo", "correction": "bypass"},
            "lora": {"dropout": dropout},
            "data": {"train": str(write_prompts(tmp_path / "prompts.jsonl", count=8)), "eval_fraction": 0.25},
            "rewards": [{"name": "repetition", "settings": {"n": 1}}],
            "sampling": {"group_size": 2, "max_completion_length": 4},
            "train": {"steps": 1, "prompts_per_step": 2},
            "evaluation": {"prompts": 2, "samples": 1, "writing": 0},
            "guards": {"max_truncated": 1.0},
            "report": False,
            "output": str(tmp_path / "run"),
        }
    )
    assert ("mismatch/fresh_mean" in run.metrics[0]) == told, run.metrics[0]


def test_the_percentile_is_of_the_step_and_not_of_its_parts():
    gaps = [float(n) for n in range(1, 201)]
    parts = [batch_of(gaps[start : start + 40], [0] * 40, 0) for start in range(0, 200, 40)]
    found = [mismatch_metrics(Outputs(logprobs_BT=torch.zeros(1, 40)), part) for part in parts]
    assert reduced(*found)["mismatch/fresh_p99"] == 198
    assert math.isnan(float(Percentile(0.99, (torch.ones(49),)))), "of so few numbers it would be the largest"


# --- on a GPU, which is read once, at the end ------------------------------------------------------------------------


@pytest.mark.parametrize("versions", [[3, 3, 3, 3], [1, 1, 2, 2], [3, 1, 3, 2]], ids=["fresh", "stale", "both"])
def test_a_gpu_tells_the_metrics_of_a_cpu_by_one_copy(versions):
    """No metrics of fresh tokens if the whole step has none, and none of stale ones in an on-policy run."""
    batch, outputs = batch_of([-0.25, 0.5, -2.0, 4.0], versions, 3), Outputs(logprobs_BT=torch.zeros(1, 4))
    many = [replace(batch, **{name: getattr(batch, name).repeat(1, 20) for name in SPREAD}) for _ in range(2)]
    expected = reduced(*(mismatch_metrics(outputs, one) for one in many))
    with second_device() as device:
        log = MetricLog()
        for one in many:
            there = {name: getattr(one, name).to(DEVICE) for name in SPREAD}
            log.add(mismatch_metrics(outputs, replace(one, **there)))
        device.forget()
        log.read()
        found = log.reduce()
        assert device.waits == ["copy to the host"]
    assert found == pytest.approx(expected, nan_ok=True)
    assert found.keys() == expected.keys()
    assert ("mismatch/fresh_max" in found, "mismatch/stale_mean" in found) == (3 in versions, versions != [3] * 4)


SPREAD = ("completion_mask_BT", "old_logprobs_BT", "sampling_logprobs_BT", "versions_BT")


def test_pairs_of_which_none_is_whole_have_no_scores_on_either():
    scores_N, whole_N = torch.zeros(2), torch.zeros(2, dtype=torch.bool)
    with second_device():
        log = MetricLog()
        log.add(score_metrics(*(x.to(DEVICE) for x in (scores_N, scores_N, whole_N))))
        log.read()
    assert log.merged == score_metrics(scores_N, scores_N, whole_N) == {}
