"""The rewards decide which values a majority vote counts."""

import pytest
from tests.rewards.rollouts import IN_TIME, completion, prompt

from posttrain.evaluate.votes import math_answer, normalise, numeric_answer, vote_for
from posttrain.rewards import Reward, build_rewards
from posttrain.verify.verdict import Verdict


@pytest.mark.parametrize(
    ("text", "vote"),
    [("so 1,234", "1234"), ("$1234.0", "1234"), ("2468/2", "1234"), ("so 20%", "20%"), ("no number", None)],
)
def test_the_same_number_is_the_same_vote(text, vote):
    assert numeric_answer(text) == vote


@pytest.mark.parametrize(
    ("text", "vote"), [(r"\boxed{\frac{2}{4}}", "1/2"), (r"\boxed{0.5}", "1/2"), (r"\boxed{x^2}", "x^2"), ("", None)]
)
def test_a_formula_votes_as_it_was_written_and_a_number_by_its_value(text, vote):
    assert math_answer(text) == vote


@pytest.mark.parametrize(("text", "vote"), [("  A  b\n", "a b"), ("", None), ("  ", None), (None, None)])
def test_space_and_case_do_not_make_another_answer(text, vote):
    assert normalise(text) == vote


@pytest.mark.parametrize(
    ("rewards", "vote"),
    [
        ([Reward(name="numeric")], "7"),
        ([Reward(name="math")], "7"),
        ([Reward(name="exact_match")], "<a>six</a> <a>seven</a> so 7"),
        ([Reward(function=lambda prompt, completion: 1.0, label="own"), Reward(name="numeric", weight=0.5)], "7"),
    ],
)
def test_the_first_verifier_that_reads_an_answer_says_how(rewards, vote):
    with build_rewards(rewards) as built:
        assert vote_for(built)("<a>six</a> <a>seven</a> so 7", {}) == vote


def test_what_a_pattern_extracts_is_told_by_the_verdict():
    with build_rewards([Reward(name="exact_match", settings={"extract": "<a>(.*?)</a>"})]) as built:
        (label,) = (component.label for component in built.components)
        vote = vote_for(built)
        assert vote("<a>six</a>", {label: Verdict(0.0, "wrong", extracted="seven")}) == "seven"
        assert vote("<a>six</a>", {label: Verdict(None, "timeout")}) is None
        assert vote("<a>six</a>", {label: None}) is None


@pytest.mark.slow
def test_a_pattern_that_searches_for_ever_ends_with_its_worker_and_not_with_the_evaluation():
    """A worker runs it and reaches its deadline; no other process runs it. A judgement that failed has no vote."""
    reward = Reward(name="exact_match", timeout=IN_TIME, settings={"extract": r"(?:[\w ]+)*answer: (\d+)"})
    texts = ["answer: 3", "a" * 40 + "!"]
    with build_rewards([reward]) as built:
        scores = built.score([prompt(0, answer="3")], [[completion(text) for text in texts]])
        (label,) = scores.verdicts
        vote = vote_for(built)
        votes = [vote(text, {label: said}) for text, said in zip(texts, scores.verdicts[label][0], strict=True)]
    assert scores.scored_PG == [[True, False]]
    assert votes == ["3", None]
