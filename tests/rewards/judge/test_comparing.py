"""Scores from judgements: pairs in both orders, points, references; and cases that need no judge."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rewards.judge.server import one_point_per_letter, same_text
from tests.rewards.rollouts import completion, prompt

from posttrain.rewards.judge import Judgement, Reply, judge_metrics
from posttrain.rewards.judge.modes import even_pairs


def metrics(scores) -> dict[str, float]:
    return {name: float(value) for name, value in judge_metrics(scores.judgements).items()}


# pairs


def test_the_winner_of_a_pair_gets_one_and_the_loser_nothing(score):
    assert score(["long answer", "short"]).rewards_PG == [[1.0, 0.0]]


def test_each_answer_of_a_group_gets_its_share_of_won_comparisons(score, server):
    """Lengths 1, 3, 2, 2: of three comparisons each, the answers won 0, 3, 1.5 and 1.5."""
    assert score(["a", "bbb", "cc", "dd"]).rewards_PG == [[0.0, 1.0, 0.5, 0.5]]
    assert len(server.requests) == 2 * 6


def test_a_judge_that_prefers_a_position_gets_ties_and_is_found_out(score, server):
    server.rule = lambda texts: "Verdict: A"
    scores = score(["long answer", "short"])
    assert scores.rewards_PG == [[0.5, 0.5]]
    found = metrics(scores)
    assert (found["judge/ties"], found["judge/position_bias"], found["judge/first_won"]) == (1.0, 1.0, 1.0)


def test_a_consistent_judge_has_no_position_bias(score):
    found = metrics(score(["a", "bbb", "cc"]))
    assert (found["judge/ties"], found["judge/position_bias"], found["judge/first_won"]) == (0.0, 0.0, 0.5)


def test_a_tie_in_one_order_is_a_tie(score, server):
    server.rule = lambda texts: f"Verdict: {'A' if texts['answer_a'] == 'one' else 'tie'}"
    assert score(["one", "two"]).rewards_PG == [[0.5, 0.5]]


def test_a_maximum_of_comparisons_is_spread_evenly(score, server):
    scores = score(["a", "bb", "ccc", "dddd"], max_comparisons=2)
    assert len(scores.judgements) == 2
    assert scores.rewards_PG == [[0.0, 0.0, 1.0, 1.0]], "the first meets the last"


def test_every_answer_takes_part_in_one_comparison_whatever_the_maximum(score):
    assert None not in score(["a", "bb", "ccc"], max_comparisons=1).parts["judge"][0]


def test_one_answer_alone_is_not_judged_and_that_is_no_failure(score, server):
    scores = score(["alone"])
    assert scores.parts["judge"] == [[None]]
    assert scores.failures == ()
    assert server.requests == []


def test_groups_are_compared_within_themselves(judged):
    groups = [[completion("a"), completion("bb")], [completion("cccc"), completion("ddd")]]
    assert judged().score([prompt(0), prompt(1)], groups).rewards_PG == [[0.0, 1.0], [1.0, 0.0]]


def test_answers_can_be_compared_with_a_column(score):
    columns = {"human": "four"}
    assert score(["two", "threefold", "five"], columns=columns, against="human").rewards_PG == [[0.0, 1.0, 0.5]]


# points and references


def test_points_are_counted_over_five(score, server):
    server.rule = one_point_per_letter
    assert score(["a", "bbb", "long enough"], mode="score").rewards_PG == [[0.2, 0.6, 1.0]]


def test_the_mean_of_several_judgements_counts(score, server):
    """Three judgements with 5, 0 and 4 points have the mean 3."""
    points = iter([5, 0, 4])
    server.rule = lambda texts: f"Score: {next(points)}"
    scores = score(["answer"], mode="score", samples=3, temperature=0.7, concurrency=1)
    assert scores.rewards_PG == [[pytest.approx(0.6)]]
    assert len({request["seed"] for request in server.requests}) == 3


def test_an_answer_is_judged_by_its_reference(score, server):
    server.rule = same_text
    assert score(["4", "5"], mode="reference", columns={"answer": "4"}).rewards_PG == [[1.0, 0.0]]


def test_a_row_without_reference_is_not_judged(score, server):
    assert score(["4"], mode="reference", columns={"answer": None}).parts["judge"] == [[None]]
    assert server.requests == []


# cases without a judge


@pytest.mark.parametrize(
    "nothing", ["", " \n\t", ":", ".", "?!", "Thought process:", "thought process", "Solution", "解"]
)
def test_answers_that_say_nothing_lose_without_a_question(score, server, nothing):
    """The published keys that make judges say yes (arXiv:2507.08794)."""
    server.rule = lambda texts: "Verdict: A" if texts["answer_a"] == nothing else "Verdict: B"
    assert score([nothing, "an answer"]).rewards_PG == [[0.0, 1.0]]
    assert score([nothing], mode="score").rewards_PG == [[0.0]]
    assert score([nothing], mode="reference", columns={"answer": "4"}).rewards_PG == [[0.0]]
    assert server.requests == []


def test_two_answers_that_say_nothing_tie_and_so_do_equal_ones(score, server):
    scores = score(["", ":"]), score(["same", " same "])
    assert [found.rewards_PG for found in scores] == [[[0.5, 0.5]], [[0.5, 0.5]]]
    assert server.requests == []
    assert metrics(scores[0])["judge/unasked"] == 1.0


def test_an_answer_that_is_all_reasoning_says_nothing(score, server):
    assert score(["<think>long long reasoning", "an answer"]).rewards_PG == [[0.0, 1.0]]
    assert server.requests == []


def test_reasoning_is_not_shown_unless_asked_for(score, server):
    score(["<think>secret</think>one", "two"])
    assert not any("secret" in request["messages"][0]["content"] for request in server.requests)
    score(["<think>secret</think>one", "two"], strip_reasoning=False)
    assert any("secret" in request["messages"][0]["content"] for request in server.requests)


# records of judgements


def test_a_judgement_holds_both_orders_as_they_were_said(score):
    (judgement,) = score(["long answer", "short"]).judgements
    assert (judgement.label, judgement.prompt, judgement.completion, judgement.opponent) == ("judge", 7, 0, 1)
    assert [reply.verdict for reply in judgement.replies] == ["A", "B"]
    assert judgement.replies[0].text == "One is longer.\nVerdict: A"
    assert judgement.to_json()["replies"][1]["calls"] == 1


def test_metrics_of_a_worked_step():
    """Three comparisons: agreed, changed with the order, half unreadable; and one that needed no request."""

    def compared(score, *verdicts):
        replies = tuple(Reply(verdict=verdict, calls=1, tokens=10, seconds=0.5) for verdict in verdicts)
        return Judgement(label="j", prompt=0, completion=0, opponent=1, score=score, replies=replies)

    judgements = [compared(1.0, "A", "B"), compared(0.5, "A", "A"), compared(None, "A", None), compared(0.5)]
    assert {name: float(value) for name, value in judge_metrics(judgements).items()} == {
        "judge/ties": 0.5,
        "judge/position_bias": 0.5,
        "judge/first_won": 0.75,
        "judge/unparsable": pytest.approx(1 / 6),
        "judge/cached": 0.0,
        "judge/unasked": 0.25,
        "judge/calls": 6.0,
        "judge/tokens": 60.0,
        "judge/seconds": 3.0,
    }


@given(size=st.integers(2, 10), most=st.integers(1, 50))
def test_every_answer_is_compared_about_equally_often(size: int, most: int):
    pairs = even_pairs(size, most)
    assert len(pairs) == len(set(pairs)) == min(max(most, -(-size // 2)), size * (size - 1) // 2)
    counts = [sum(member in pair for pair in pairs) for member in range(size)]
    assert min(counts) >= 1
    assert max(counts) - min(counts) <= 1
