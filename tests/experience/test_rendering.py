"""The messages about the rows of a run before it trains."""

from __future__ import annotations

import pytest

from posttrain.data.dropped import Rendered
from posttrain.data.labels import LabelledSet, Unpaired
from posttrain.experience.rendering import data_notes
from posttrain.types import Example, LabelledExample, Pair


def example(text: str) -> Example:
    return Example(index=0, input_ids=tuple(text.encode()), completion_mask=(True,) * len(text))


def pairs(*texts: str) -> Rendered:
    made = [Pair(index=0, chosen=example(text[0]), rejected=example(text[1])) for text in texts]
    return Rendered(rows=made)


def examples(*texts: str) -> Rendered:
    return Rendered(rows=[example(text) for text in texts], form="text")


def labelled(*texts: str, label: bool = True) -> LabelledSet:
    return LabelledSet(rows=[LabelledExample(index=0, example=example(text), label=label) for text in texts])


def unpaired(*texts: str) -> LabelledSet:
    made = pairs(*texts).rows
    return LabelledSet(rows=Unpaired(made), pairs=made)


@pytest.mark.parametrize(
    ("train", "heldout", "shared"),
    [
        (examples("a", "b", "b"), examples("b", "c", "b"), "2 of 3"),
        (pairs("ab", "cd"), pairs("ab", "ad", "dc"), "1 of 3"),
        (labelled("a", "b"), labelled("b", "c", label=False), "1 of 2"),
        (unpaired("ab"), labelled("a", "b", "c"), "2 of 3"),
        (unpaired("ab", "cd"), unpaired("ax", "yd", "cd"), "1 of 3"),
    ],
    ids=["examples", "pairs, both answers", "labels, whatever they say", "answers of pairs", "pairs one by one"],
)
def test_held_out_rows_that_are_trained_on_are_counted(train, heldout, shared):
    (note,) = data_notes(train, heldout)
    assert note.startswith(f"{shared} held-out rows are in the training data word for word")


def test_of_other_rows_nothing_is_said():
    assert data_notes(examples("a"), examples("b")) == []
    assert data_notes(examples("a"), None) == []


def asked(prompt: str, answer: str) -> Example:
    ids = tuple((prompt + answer).encode())
    return Example(index=0, input_ids=ids, completion_mask=(False,) * len(prompt) + (True,) * len(answer))


def asked_pairs(*texts: str) -> Rendered:
    return Rendered(rows=[Pair(index=0, chosen=asked(t[:2], t[2]), rejected=asked(t[:2], t[3])) for t in texts])


def asked_examples(*texts: str) -> Rendered:
    return Rendered(rows=[asked(text[:2], text[2:]) for text in texts])


def asked_labels(*texts: str) -> LabelledSet:
    rows = [LabelledExample(index=0, example=asked(text[:2], text[2:]), label=True) for text in texts]
    return LabelledSet(rows=rows)


@pytest.mark.parametrize("made", [asked_pairs, asked_examples, asked_labels])
def test_held_out_rows_with_a_trained_prompt_are_counted(made):
    train = made("1+xy", "2+xy", "2+zy")
    (note,) = data_notes(train, made("2+uv", "3+xy", "1+uv"))
    assert note.startswith("2 of 3 held-out rows have a prompt that is also trained")
    assert data_notes(train, made("3+xy", "4+xy")) == []
    (note,) = data_notes(train, made("2+xy", "3+xy"))
    assert "word for word" in note
    assert len(data_notes(train, made("2+xy", "1+uv"))) == 2


@pytest.mark.parametrize(
    ("texts", "distinct"),
    [
        (["1+xy", "1+zy", "2+xy", "2+zy"], 2),
        (["1+xy", "1+zy", "1+vw"], 1),
        ([f"{number}+xy" for number in "12345671"], None),
        ([f"{number}+xy" for number in "1234512"], 5),
        (["1+xy", "2+xy"], None),
        (["1+xy"], None),
    ],
)
@pytest.mark.parametrize("made", [asked_pairs, asked_examples, asked_labels])
def test_held_out_rows_that_repeat_prompts_are_told_with_the_number_of_different_ones(made, texts, distinct):
    expected = [] if distinct is None else [f"the {len(texts)} held-out rows have only {distinct} different prompts: "]
    notes = data_notes(made("8+xy", "9+xy"), made(*texts))
    assert [note[: note.index(":") + 2] for note in notes] == expected


def test_pairs_that_are_trained_one_by_one_repeat_no_prompt():
    rows = asked_pairs("1+xy", "2+xy").rows
    assert data_notes(asked_examples("8+xy"), LabelledSet(rows=Unpaired(rows), pairs=rows)) == []


def test_rows_without_a_prompt_repeat_none():
    assert data_notes(examples("ab"), examples("cd", "ef", "gh")) == []
