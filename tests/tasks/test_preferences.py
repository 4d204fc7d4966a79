"""Preference pairs of a task: the chosen answer is right, the rejected one wrong, and the splits share no prompt."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.data.read import read_rows
from posttrain.errors import DataError
from posttrain.tasks import TASKS, find_task, preferences
from posttrain.tasks.base import ALPHABET, split_of

each_task = pytest.mark.parametrize("name", TASKS)


@each_task
@given(seed=st.integers(0, 10**6))
def test_the_chosen_answer_is_right_and_the_rejected_one_is_another(name: str, seed: int):
    rows = find_task(f"pairs/{name}").rows(5, seed=seed)
    assert [row["chosen"] for row in rows] == [row["answer"] for row in TASKS[name].rows(5, seed=seed)]
    for row in rows:
        assert row["rejected"] not in ("", row["chosen"])
        assert set(row["rejected"]) <= set(ALPHABET)


def test_half_of_the_rejected_answers_have_mistakes_and_half_are_of_other_problems():
    rows = find_task("pairs/sort").rows(400)
    answers = {row["answer"] for row in rows}
    of_others = sum(row["rejected"] in answers for row in rows)
    assert 140 < of_others < 260


def test_pairs_are_a_function_of_seed_and_split():
    rows = [find_task("pairs/sort:8").rows(20, seed=seed, split=split) for seed, split in ((1, "train"), (1, "eval"))]
    assert rows[0] == find_task("pairs/sort:8").rows(20, seed=1)
    assert {split_of(row["prompt"]) for row in rows[0]} == {"train"}
    assert {split_of(row["prompt"]) for row in rows[1]} == {"eval"}


def test_a_run_reads_them_by_name():
    rows = read_rows("task:pairs/sort", max_rows=2)
    assert rows[0].values.keys() == {"prompt", "chosen", "rejected", "answer"}
    assert rows[0].origin == "task:pairs/sort, train row 0"


def test_pairs_of_an_unknown_task_are_an_error():
    with pytest.raises(DataError, match=r"there is no task 'srot'(.|\n)*Did you mean 'sort'"):
        find_task("pairs/srot")


def test_the_examples_in_its_docstrings_are_true():
    assert doctest.testmod(preferences) == (0, 1)
