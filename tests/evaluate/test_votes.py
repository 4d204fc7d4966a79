"""By what a majority is counted follows from the rewards."""

import pytest

from posttrain.evaluate.votes import extract_for, math_answer, normalise, numeric_answer
from posttrain.rewards import Reward, build_rewards


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
        ([Reward(name="exact_match", settings={"extract": "<a>(.*?)</a>"})], "seven"),
        ([Reward(name="exact_match")], "<a>six</a> <a>seven</a> so 7"),
        ([Reward(function=lambda prompt, completion: 1.0, label="own"), Reward(name="numeric", weight=0.5)], "7"),
    ],
)
def test_the_first_verifier_that_reads_an_answer_says_how(rewards, vote):
    with build_rewards(rewards) as built:
        assert extract_for(built)("<a>six</a> <a>seven</a> so 7") == vote


def test_no_match_is_no_vote():
    with build_rewards([Reward(name="exact_match", settings={"extract": "<a>(.*?)</a>"})]) as built:
        assert extract_for(built)("nothing") is None
