"""Stop strings are found when decoded text completes them, in any split of the text into tokens."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engines.policies import real_model, tiny_tokenizer

from posttrain.engines.sampling import StopStrings


@cache
def byte_level_tokenizer():
    return real_model("minimind2-small")[1]


def ids_of(words: list[str]) -> list[int]:
    return [tiny_tokenizer().convert_tokens_to_ids(word) for word in words]


@pytest.mark.parametrize(
    ("words", "stops", "text"),
    [
        (["a", "b", "."], ["."], "ab"),
        (["x", "ab", "END"], ["bEN"], "xa"),  # begins inside one token and ends inside another
        (["x", "END"], ["N", "END"], "x"),  # two in the same text: the one that begins first
        (["END", "x"], ["END"], ""),  # detected late, for example after a longer token
        (["é", "."], ["é."], ""),
        (["a", "<eos>"], ["<eos>"], "a"),  # special tokens stop by their spelling
    ],
)
def test_the_text_ends_before_the_first_stop_string(words, stops, text):
    ids = ids_of(words)
    stop = StopStrings(tiny_tokenizer(), stops)
    assert stop.completed([ids]) == [True]
    assert stop.text(ids, stopped=True) == text


def test_a_part_of_a_stop_string_does_not_stop():
    stop = StopStrings(tiny_tokenizer(), ["END.", "abc"])
    assert stop.completed([ids_of(["x", "E", "N", "D"]), ids_of(["E", "ab", "ab", "D"])]) == [False, False]


def test_a_text_that_ended_otherwise_is_not_cut():
    stop = StopStrings(tiny_tokenizer(), ["b"])
    assert stop.text(ids_of(["a", "b", "<eos>"]), stopped=False) == "ab"


def test_without_strings_there_is_nothing_to_look_for():
    assert not StopStrings(tiny_tokenizer(), [])


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_looking_at_the_last_tokens_finds_what_looking_at_the_whole_text_finds(data):
    """A real tokenizer with byte-level pieces: random ids decode to broken UTF-8, spaces and special tokens."""
    tokenizer = byte_level_tokenizer()
    ids = data.draw(st.lists(st.integers(0, 6399), min_size=1, max_size=40))
    text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    start = data.draw(st.integers(0, len(text) - 1)) if text else 0
    string = text[start : start + data.draw(st.integers(1, 12))].replace("\ufffd", "") or "never"
    stop = StopStrings(tokenizer, [string])
    for t in range(1, len(ids) + 1):
        so_far = tokenizer.decode(ids[:t], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert stop.completed([ids[:t]]) == [string in so_far]
        if string in so_far:
            break
