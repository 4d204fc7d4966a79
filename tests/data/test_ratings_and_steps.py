"""Rated answers and labelled steps: the tokens that are read, cut rows, dropped rows and the reasons."""

from __future__ import annotations

import pytest
from tokenizers import normalizers

from posttrain.data.prompts import Renderer
from posttrain.data.ratings import render_ratings
from posttrain.data.read import Row
from posttrain.data.steps import render_solution, render_steps, split_steps
from posttrain.errors import ConfigError, DataError
from posttrain.train.sources import scale_of

EOS = frozenset({2})


def rows(*values: dict) -> list[Row]:
    return [Row(origin=f"a.jsonl:{number}", values=value) for number, value in enumerate(values, start=1)]


def ratings(renderer: Renderer, *values: dict, max_length: int = 99, max_dropped: float = 0.9):
    return render_ratings(
        rows(*values), renderer, eos_ids=EOS, max_length=max_length, max_dropped=max_dropped, what="training data"
    )


def steps(renderer: Renderer, *values: dict, separator: str = "\n", max_length: int = 99, max_dropped: float = 0.9):
    return render_steps(
        rows(*values),
        renderer,
        separator=separator,
        max_length=max_length,
        max_dropped=max_dropped,
        what="training data",
    )


def solved(*judged: tuple[str, bool | float], prompt: str = "1+1") -> dict:
    return {"prompt": prompt, "completions": [step for step, _ in judged], "labels": [label for _, label in judged]}


# ratings


def test_an_answer_ends_with_its_eos_and_keeps_its_number(renderer):
    found = ratings(renderer, {"prompt": "ab", "completion": "cd", "score": 7})
    assert found.rows[0].score == 7.0
    assert renderer.tokenizer.decode(found.rows[0].example.input_ids).endswith("abcd<eos>")


def test_both_answers_of_a_scored_pair_are_rows_of_their_own(renderer):
    pair = {"prompt": "ab", "chosen": "cd", "rejected": "e", "score_chosen": 8, "score_rejected": 2.5}
    found = ratings(renderer, pair, {**pair, "score_rejected": None})
    assert [(row.index, row.score) for row in found.rows] == [(0, 8.0), (0, 2.5), (1, 8.0)]
    assert found.dropped_summary == "dropped 1 of 4 rows: 1 no value in column 'score_rejected' (a.jsonl:2)"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "a", "completion": "b" * 200, "score": 1}, "longer than 99 tokens"),
        ({"prompt": "a", "completion": "b", "score": float("inf")}, "score is not a finite number"),
        ({"prompt": "a", "completion": "b", "score": True}, "score is not a finite number"),
        ({"prompt": "", "completion": "b", "score": 1}, "empty prompt"),
        ({"prompt": "a", "completion": " ", "score": 1}, "an empty answer"),
    ],
)
def test_a_rating_that_cannot_be_used_is_dropped_by_name(renderer, row, reason):
    found = ratings(renderer, {"prompt": "a", "completion": "b", "score": 1}, row)
    assert [(d.origin, d.reason) for d in found.dropped] == [("a.jsonl:2", reason)]


def test_the_scale_is_that_of_all_training_ratings():
    assert scale_of([1.0, 3.0], {"standardized"}) == (2.0, 1.0)
    assert scale_of([1.0, 3.0], ()) == (0.0, 1.0)
    with pytest.raises(DataError, match=r"1 of 2 ratings are not between 0 and 1; the first is 3"):
        scale_of([1.0, 3.0], {"unit_interval"})


# steps


def test_each_step_is_read_at_the_last_token_of_its_separator(renderer):
    found = steps(renderer, solved(("add", True), ("so 2", 0.25)), separator=" ;")
    row = found.rows[0]
    assert renderer.tokenizer.decode(row.example.input_ids).endswith("1+1add ;so 2 ;")
    ends = [place for place, end in enumerate(row.example.completion_mask) if end]
    assert [renderer.tokenizer.decode(row.example.input_ids[: end + 1])[-5:] for end in ends] == ["add ;", "o 2 ;"]
    assert row.labels == (1.0, 0.25)


def test_a_step_that_the_context_cuts_is_unlabelled_and_counted(renderer):
    row = solved(("add", True), ("then", False), ("so 2", True))
    whole = steps(renderer, row).rows[0].example.input_ids
    found = steps(renderer, row, max_length=len(whole) - 1)
    assert found.rows[0].labels == (1.0, 0.0)
    assert len(found.rows[0].example.input_ids) == len(whole) - len("so 2\n")
    assert found.notes == ["1 of 3 steps end beyond the context and are not trained"]


def test_a_step_whose_label_is_null_is_read_and_not_learned_from(renderer):
    """It is treated as a neutral step: later steps still see it."""
    labels = {"prompt": "a", "completions": ["b", "c", "d"], "labels": [True, None, False]}
    (row,) = (found := steps(renderer, labels)).rows
    assert row.labels == (1.0, 0.0)
    assert sum(row.example.completion_mask) == 2
    whole = steps(renderer, labels | {"labels": [1, 1, 0]}).rows[0].example
    assert row.example.input_ids == whole.input_ids
    assert found.cut == 0


def test_an_answer_of_which_no_step_fits_is_dropped(renderer):
    found = steps(renderer, solved(("add", True)), solved(("x" * 50, True)), max_length=20)
    assert found.dropped_summary == "dropped 1 of 2 rows: 1 no labelled step within 20 tokens (a.jsonl:2)"


def test_a_step_that_holds_the_separator_is_worth_a_line(renderer):
    found = steps(renderer, solved(("a\nb", True), ("c\n", True)))
    assert found.notes[0].startswith("1 of 2 steps contain the separator")
    assert renderer.tokenizer.decode(found.rows[0].example.input_ids).endswith("a\nb\nc\n")  # never twice


def test_an_answer_that_is_cut_at_its_separators_has_the_ids_of_training(renderer):
    found = steps(renderer, solved(("add", True), ("so 2", True))).rows[0].example
    again = render_solution("1+1", split_steps("add\nso 2", "\n"), renderer, "\n")
    assert again.ids == found.input_ids
    assert again.ends == tuple(place for place, end in enumerate(found.completion_mask) if end)


def test_a_chat_prompt_is_rendered_by_the_template(chat_tokenizer):
    renderer = Renderer(tokenizer=chat_tokenizer, chat=True)
    found = steps(renderer, solved(("add", True)))
    assert chat_tokenizer.decode(found.rows[0].example.input_ids) == "<bos>u:1+1<eos>a:add\n"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "a", "completions": ["b"], "labels": [True, False]}, "completions and labels of different length"),
        (
            {"prompt": "a", "completions": ["b"], "labels": [1.5]},
            "a label of a step that is neither true, false nor between 0 and 1",
        ),
        ({"prompt": "a", "completions": ["b"], "labels": [None]}, "no step with a label"),
        ({"prompt": "a", "completions": [], "labels": []}, "no steps"),
        ({"prompt": "a", "completions": [" "], "labels": [True]}, "a step without text"),
        ({"prompt": "a", "completions": ["b"], "labels": None}, "no value in column 'labels'"),
    ],
)
def test_steps_that_cannot_be_used_are_dropped_by_name(renderer, row, reason):
    found = steps(renderer, solved(("add", True)), row)
    assert [(d.origin, d.reason) for d in found.dropped] == [("a.jsonl:2", reason)]


def test_a_separator_without_a_token_is_refused(renderer):
    """The tokenizer of this test strips its input."""
    renderer.tokenizer.backend_tokenizer.normalizer = normalizers.Strip()
    with pytest.raises(ConfigError, match=r"separator = '\\n', for which this tokenizer has no token"):
        render_solution("a", ["b"], renderer, "\n")
