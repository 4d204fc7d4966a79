"""Examples from a task: right answers, preferred answers, and judgements of right and wrong answers."""

from __future__ import annotations

import pytest

from posttrain.data.read import read_rows
from posttrain.errors import DataError
from posttrain.tasks import find_task


def test_demonstrations_have_the_right_answer_as_the_completion():
    rows = find_task("examples/sort:5").rows(20)
    assert all(row["completion"] == "".join(sorted(row["prompt"][:-1])) for row in rows)
    assert [row["prompt"] for row in rows] == [row["prompt"] for row in find_task("sort:5").rows(20)]


def test_of_taste_the_preferred_answers_are_shown():
    rows, pairs = find_task("examples/taste").rows(20, split="eval"), find_task("pairs/taste").rows(20, split="eval")
    assert [(row["prompt"], row["completion"]) for row in rows] == [(row["prompt"], row["chosen"]) for row in pairs]


def test_judgements_give_a_wrong_answer_points_for_the_characters_in_place_and_all_to_the_right_one_alone():
    rows = [row.values for row in read_rows("task:judgements/sort", max_rows=200)]
    assert {row["completion"] for row in rows} == {f"score: {points}" for points in range(6)}
    for row in rows:
        word, _, answer = row["prompt"].removesuffix(":\n").partition(">")
        right = "".join(sorted(word))
        in_place = sum(given == wanted for given, wanted in zip(answer, right, strict=False))
        share = in_place / max(len(answer), len(right))
        assert row["completion"] == f"score: {int(5 * share)}"
        assert (answer == right) == (row["completion"] == "score: 5")
    assert sum(row["completion"] == "score: 5" for row in rows) == 100


def test_a_task_that_there_is_not_is_named():
    for name in ("examples/srot", "judgements/srot"):
        with pytest.raises(DataError, match="there is no task 'srot'"):
            find_task(name)
