"""Rewards that read only the text: fuzzy match, repetition, language."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.errors import ConfigError, DataError
from posttrain.rewards import fuzzy, language, repetition
from posttrain.rewards.fuzzy import SQUAD, edit_distance, edit_similarity, fuzzy_match, normalized, token_f1
from posttrain.rewards.verifiers import exact_match

# fuzzy match

LETTERS = st.text("abc", max_size=9)


def table_of_edits(one: str, other: str) -> int:
    """The edit distance by the textbook's table, row by row."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        above, row = row, [i]
        for j, b in enumerate(other, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (a != b)))
    return row[-1]


@given(LETTERS, LETTERS)
def test_edits_are_counted_as_the_table_counts_them(one, other):
    assert edit_distance(one, other) == table_of_edits(one, other) == edit_distance(other, one)


@given(st.text(max_size=20), st.text(max_size=20))
def test_a_similarity_is_a_share_and_1_for_the_same_text_only(one, other):
    value = edit_similarity(one, other)
    assert 0 <= value <= 1
    assert (value == 1) == (one == other)


def test_words_are_counted_as_often_as_both_have_them():
    assert token_f1("red brick house", "a red house") == pytest.approx(2 / 3)
    assert token_f1("a b", "a a a a") == pytest.approx(2 * 1 / (2 + 4))
    assert token_f1("x", "y") == 0


def test_squad_overlooks_case_punctuation_and_articles():
    assert fuzzy_match("The Eiffel-Tower!", "eiffeltower").score == 1
    assert fuzzy_match("It is in Paris, France", "Paris").score == pytest.approx(2 / 6)
    assert fuzzy_match("Paris", ["London", "paris"]).reason == "correct"
    assert fuzzy_match("<think>Paris</think>Rome", "Paris").score == 0


def test_from_a_threshold_on_it_is_right():
    whole = fuzzy_match("kitten", "sitting", measure="edit")
    assert (whole.score, whole.reason) == (pytest.approx(4 / 7), "partial")
    assert fuzzy_match("kitten", "sitting", measure="edit", at_least=0.5).reason == "correct"
    assert fuzzy_match("kitten", "sitting", measure="edit", at_least=0.6).reason == "wrong"


def test_what_is_overlooked_is_what_was_declared():
    assert normalized("The Cat", []) == "The Cat"
    assert normalized("A  b", ["case"]) == "a  b"
    assert fuzzy_match("PARIS", "Paris", normalize=[]).score == 0
    with pytest.raises(ConfigError, match="normalize holds 'stem'; allowed: unicode, case"):
        normalized("x", ["stem"])  # type: ignore[list-item]


def test_a_gold_number_may_be_one_of_numpy():
    assert exact_match("5", np.int64(5)).score == exact_match("5", np.float64(5.0)).score == 1
    with pytest.raises(DataError, match="the gold answer is"):
        exact_match("True", np.bool_(True))


def test_an_exact_match_may_overlook_what_is_declared():
    assert exact_match("the  Cat!", "Cat").score == 0
    assert exact_match("the  Cat!", "cat", normalize=SQUAD).reason == "correct"
    assert exact_match("cats", "cat", normalize=SQUAD).reason == "wrong"
    for completion in ("x", ""):
        with pytest.raises(DataError, match="nothing is left of the gold answer 'The'"):
            exact_match(completion, "The", normalize=SQUAD)


@pytest.mark.parametrize("answer", [None, "", float("nan"), [], ["a", None], "the"])
def test_a_gold_answer_of_which_nothing_is_left_is_an_error(answer):
    with pytest.raises(DataError):
        fuzzy_match("anything", answer)


def test_saying_nothing_is_no_answer_and_a_flood_is_not_compared():
    assert [fuzzy_match(text, "x").reason for text in ("", " ?! ", "<think>x")] == ["no_answer"] * 3
    assert fuzzy_match("a" * 100_000, "x", measure="edit").reason == "too_large"


# repetition


def test_repeated_n_grams_cost_their_share():
    assert repetition.repetition("", [5, 5, 5, 5, 5], n=2).score == -0.75
    assert repetition.repetition("", [1, 2, 3, 1, 2, 3, 1], n=3).score == -0.4
    assert repetition.repetition("", [1, 2, 3, 4], n=2).reason == "varied"


def test_fewer_than_n_tokens_cannot_repeat():
    verdict = repetition.repetition("", [1, 1], n=3)
    assert (verdict.score, verdict.reason) == (0.0, "too_short")


def test_words_are_counted_without_case():
    assert repetition.repetition("No no NO no", [1, 2, 3], n=1, unit="words", penalty=2).score == -1.5


@pytest.mark.parametrize("settings", [{"n": 0}, {"penalty": -1}, {"unit": "letters"}])
def test_a_repetition_that_would_be_paid_for_is_refused(settings):
    with pytest.raises(ConfigError, match="repetition with n ="):
        repetition.repetition("", [1], **settings)


# language


@pytest.mark.parametrize(
    ("text", "code", "share"),
    [
        ("Der Hund heißt Ötzi. 42!", "de", 1.0),
        ("答案是四十二。", "zh", 1.0),
        ("コーヒーを飲む", "ja", 1.0),
        ("Ｈｅｌｌｏ", "en", 1.0),
        ("정답은 42", "ko", 1.0),
        ("Ответ yes", "ru", 5 / 8),
        ("нет", "en", 0.0),
    ],
)
def test_letters_are_counted_by_their_script(text, code, share):
    assert language.language(text, language=code).score == pytest.approx(share)


def test_a_threshold_makes_it_all_or_nothing():
    assert language.language("Ответ yes", language="ru", at_least=0.6).score == 1.0
    assert language.language("Ответ yes", language="ru", at_least=0.7).reason == "wrong"


def test_a_completion_without_letters_is_in_no_language():
    verdict = language.language("42 + 1 = 43", language="en")
    assert (verdict.score, verdict.reason) == (0.0, "no_answer")


@pytest.mark.parametrize("settings", [{"language": "klingon"}, {"language": "en", "at_least": 0}])
def test_a_language_that_is_not_known_is_refused(settings):
    with pytest.raises(ConfigError):
        language.language("x", **settings)


@pytest.mark.parametrize("module", [fuzzy, repetition, language])
def test_the_examples_in_the_source_hold(module):
    assert doctest.testmod(module).failed == 0
