"""Verdicts: numbers with a reason, from a function to the metrics and the stored rollouts."""

import json
import math
import pickle

import numpy
import pytest
from tests.rewards.rollouts import IN_TIME, completion, prompt
from tests.rewards.verdict_functions import all_fail, each, hangs, mixed, taken_for_a_truth, together

from posttrain.errors import RewardError
from posttrain.experience.metrics import reason_metrics
from posttrain.rewards import Reward, Scores, build_rewards
from posttrain.verify.verdict import REASONS, Verdict


def test_a_verdict_is_its_score():
    verdict = Verdict(1.0, "correct", extracted="18", seconds=0.5, detail="as a fraction")
    assert verdict == 1.0
    assert 0.5 * verdict + 0.25 == 0.75
    assert isinstance(verdict, float)
    assert json.dumps(verdict) == "1.0"


def test_a_verdict_without_a_score_is_no_number():
    verdict = Verdict(None, "timeout")
    assert verdict.score is None
    assert math.isnan(verdict)


def test_what_has_no_score_stays_without_one_in_sums_and_products():
    late, right = Verdict(None, "timeout"), Verdict(1.0, "correct")
    for combined in (0.9 * late + 0.1, 0.1 + late / 2, 1 - late, -late, right + late, late + right, sum([right, late])):
        assert isinstance(combined, Verdict)
        assert (combined.score, combined.reason) == (None, "timeout")
    assert (type(0.9 * right), 0.9 * right, right / 2, 1 - right, -right) == (float, 0.9, 0.5, 0.0, -1.0)
    assert (right * numpy.ones(2)).tolist() == [1.0, 1.0]
    with pytest.raises(TypeError, match="unsupported operand"):
        _ = late + "text"


def test_a_verdict_is_true_when_it_is_not_zero_and_without_a_score_neither():
    assert [bool(Verdict(score, "partial")) for score in (1.0, 0.5, -1.0, 0.0)] == [True, True, True, False]
    with pytest.raises(RewardError, match=r"without a score \(timeout\) is used as a truth value.*\n.*`verdict.score"):
        _ = 1.0 if Verdict(None, "timeout") else 0.0


def test_composition_by_hand_leaves_unscored_what_could_not_be_judged():
    with build_rewards([Reward(function=mixed)]) as rewards:
        scores = rewards.score([prompt(0)], [[completion("late"), completion("right")]])
    assert (scores.scored_PG, scores.rewards_PG[0][1]) == ([[False, True]], 1.0)
    assert "late" in str(scores.failures[0])
    with build_rewards([Reward(function=taken_for_a_truth)]) as rewards:
        scores = rewards.score([prompt(0)], [[completion("any")]])
    assert scores.scored_PG == [[False]]
    assert "used as a truth value" in str(scores.failures[0])


@pytest.mark.parametrize("score", [None, 0.0, 1.0, -0.25])
def test_a_verdict_survives_json_and_pickle(score):
    verdict = Verdict(score, "partial", extracted="x", seconds=2.0, detail="d")
    for copy in (Verdict.from_json(json.loads(json.dumps(verdict.to_json()))), pickle.loads(pickle.dumps(verdict))):
        assert isinstance(copy, Verdict)
        assert copy.to_json() == verdict.to_json()


def test_long_findings_are_cut():
    verdict = Verdict(0.0, "wrong", extracted="7" * 10_000, detail="d" * 10_000)
    assert len(verdict.extracted or "") == len(verdict.detail) == 500


@pytest.mark.parametrize("reason", [None, ["wrong"], "", "wrong/late", "got 1\ninstead", "w" * 41])
def test_a_reason_is_a_name_for_a_metric(reason):
    """Other reasons once ended a run when reasons were counted, without a word about the reward."""
    with pytest.raises(RewardError, match=r"a verdict with the reason .*; allowed: one or a few words"):
        Verdict(1.0, reason)
    assert Verdict(1.0, "off by one").reason == "off by one"


def test_the_documented_reasons_are_all_of_them():
    assert len(set(REASONS)) == len(REASONS)
    assert {"correct", "wrong", "no_answer", "ambiguous", "unevaluated", "too_large"} < set(REASONS)
    assert {"timeout", "truncated", "error"} < set(REASONS)


def reasons(verdict_PG):
    return [[None if verdict is None else verdict.reason for verdict in row] for row in verdict_PG]


@pytest.mark.parametrize("function", [each, together, lambda completion: each(completion)], ids=["each", "batch", "λ"])
def test_verdicts_reach_the_scores_by_position(function):
    texts = ["right", "late", "wrong", "beside", "plain", "broken"]
    with build_rewards([Reward(function=function, label="mine")]) as rewards:
        scores = rewards.score([prompt(index=3)], [[completion(text) for text in texts]])
    assert scores.parts["mine"] == [[1.0, None, 0.0, None, 0.5, None]]
    assert scores.scored_PG == [[True, False, True, False, True, False]]
    verdicts = scores.verdicts["mine"][0]
    assert [None if v is None else (v.reason, v.score, v.extracted) for v in verdicts] == [
        ("correct", 1.0, "18"),
        ("timeout", None, None),
        ("wrong", 0.0, "17"),
        ("not_applicable", None, None),
        None,
        ("error", None, None),
    ]
    assert [(f.completion, f.kind, f.message) for f in scores.failures] == [
        (1, "timeout", "no result after 2 s"),
        (5, "exception", "the container is gone"),
    ]


def test_failures_of_a_plain_function_are_verdicts_too():
    with build_rewards([Reward(function=hangs, label="mine", timeout=IN_TIME)]) as rewards:
        scores = rewards.score([prompt(0)], [[completion("a"), completion("hang"), completion("raise")]])
    assert reasons(scores.verdicts["mine"]) == [[None, "timeout", "error"]]
    assert [verdict.score for verdict in scores.verdicts["mine"][0] if verdict is not None] == [None, None]
    assert scores.rewards_PG[0][0] == 1.0


def test_a_function_that_asks_learns_whether_the_completion_was_cut():
    def cut(completion, truncated):
        return Verdict(0.0, "truncated") if truncated else Verdict(1.0, "correct")

    with build_rewards([Reward(function=cut, label="mine")]) as rewards:
        scores = rewards.score([prompt(0)], [[completion("a", truncated=True), completion("a")]])
    assert [verdict.reason for verdict in scores.verdicts["mine"][0]] == ["truncated", "correct"]


def test_an_infinite_verdict_breaks_the_contract():
    with (
        build_rewards([Reward(function=lambda completion: Verdict(math.inf, "correct"), label="mine")]) as rewards,
        pytest.raises(RewardError, match='reward "mine" returned inf'),
    ):
        rewards.score([prompt(0)], [[completion("a")]])


def test_shares_of_reasons_are_metrics():
    right, wrong = Verdict(1.0, "correct"), Verdict(0.0, "wrong")
    metrics = reason_metrics({"math": [[right, wrong], [wrong, None]]})
    assert {name: metric.item() for name, metric in metrics.items()} == {
        "rewards/math/reason/correct": 0.25,
        "rewards/math/reason/wrong": 0.5,
    }


def test_scores_keep_their_verdicts_when_they_are_picked_and_joined():
    with build_rewards([Reward(function=each, label="mine")]) as rewards:
        first = rewards.score([prompt(index=0)], [[completion("right")]])
        second = rewards.score([prompt(index=1), prompt(index=2)], [[completion("plain")], [completion("wrong")]])
        third = rewards.score([prompt(index=3)], [[completion("plain")]])
    joined = Scores.joined([first, second, third])
    assert reasons(joined.verdicts["mine"]) == [["correct"], [None], ["wrong"], [None]]
    assert reasons(joined.at([2, 0]).verdicts["mine"]) == [["wrong"], ["correct"]]
    assert third.verdicts == {}


def test_what_was_extracted_may_be_a_number():
    assert Verdict(1.0, "correct", extracted=18).extracted == "18"


def test_the_time_of_a_call_that_failed_is_divided_among_its_rows():
    with build_rewards([Reward(function=all_fail, label="mine")]) as rewards:
        scores = rewards.score([prompt(0)], [[completion("a"), completion("b"), completion("c"), completion("d")]])
    seconds = [verdict.seconds for verdict in scores.verdicts["mine"][0] if verdict is not None]
    assert sum(seconds) == pytest.approx(scores.seconds["mine"])
