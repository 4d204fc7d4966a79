"""What of a task can be imitated: right answers, preferred ones, and judgements of right and wrong answers."""

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


def test_judgements_give_all_points_to_right_answers_and_none_to_wrong_ones():
    rows = [row.values for row in read_rows("task:judgements/sort", max_rows=40)]
    assert {row["completion"] for row in rows} == {"score: 0", "score: 5"}
    for row in rows:
        word, _, answer = row["prompt"].removesuffix(":\n").partition(">")
        assert (answer == "".join(sorted(word))) == (row["completion"] == "score: 5")


def test_a_task_that_there_is_not_is_named():
    for name in ("examples/srot", "judgements/srot"):
        with pytest.raises(DataError, match="there is no task 'srot'"):
            find_task(name)
