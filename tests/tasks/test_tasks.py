"""The tasks: right answers, rows that are a function of the seed, and splits that never share a prompt."""

from __future__ import annotations

import operator
import random
import re
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import examples

from posttrain.config import RewardConfig
from posttrain.data.read import TASK_ROWS
from posttrain.errors import DataError
from posttrain.rewards import verifiers
from posttrain.tasks import ALPHABET, TASKS, Task, find_builtin, find_task
from posttrain.tasks.base import split_of
from posttrain.tasks.checks import letters_in_order

each_task = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)


def value_of(expression: str) -> int:
    """The value of a sum, computed from left to right, independently of the task."""
    numbers = [int(number) for number in re.findall(r"\d+", expression)]
    signs = re.findall(r"[+-]", expression)
    total = numbers[0]
    for sign, number in zip(signs, numbers[1:], strict=True):
        total = {"+": operator.add, "-": operator.sub}[sign](total, number)
    return total


SOLUTIONS = {
    "sort": lambda prompt: min_first(prompt.removesuffix(">")),
    "reverse": lambda prompt: prompt.removesuffix("<")[::-1],
    "addition": lambda prompt: str(value_of(prompt)),
    "maximum": lambda prompt: max(prompt.removesuffix(":").split(",")),  # two digits each: as text as in number
    "count": lambda prompt: str(len(prompt[2:].split(prompt[0])) - 1),
    "arithmetic": lambda prompt: str(value_of(prompt)),
}


def min_first(word: str) -> str:
    """Selection sort, so that `sorted` is not checked by `sorted`."""
    letters, chosen = list(word), ""
    while letters:
        letters.remove(smallest := min(letters))
        chosen += smallest
    return chosen


@each_task
@given(seed=st.integers(0, 10**6), level=st.integers(0, 5))
def test_answers_are_right(task: Task, seed, level):
    harder = replace(task, difficulty=task.difficulties[min(level, len(task.difficulties) - 1)])
    for row in harder.rows(3, seed=seed):
        assert row["answer"] == SOLUTIONS[task.name](row["prompt"])


@each_task
def test_rows_are_a_function_of_seed_split_and_difficulty(task: Task):
    random.seed(0)
    first = task.rows(20, seed=1)
    random.seed(1)
    assert task.rows(20, seed=1) == first
    harder = find_builtin(f"{task.name}:{task.difficulty + 1}")
    others = [task.rows(20, seed=2), task.rows(20, seed=1, split="eval"), harder.rows(20, seed=1)]
    assert all(other != first for other in others)


@each_task
def test_a_longer_list_begins_with_the_shorter_one(task: Task):
    assert task.rows(100, seed=3)[:30] == task.rows(30, seed=3)


@each_task
@given(seeds=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)))
@examples(10, 100)
def test_training_and_held_out_prompts_are_disjoint_whatever_the_seeds(task: Task, seeds):
    train = {row["prompt"] for row in task.rows(60, seed=seeds[0])}
    heldout = {row["prompt"] for row in task.rows(60, seed=seeds[1], split="eval")}
    assert len(train) == len(heldout) == 60
    assert not train & heldout


@each_task
def test_every_difficulty_has_as_many_rows_as_a_run_asks_for_and_all_fit(task: Task):
    for difficulty in (task.difficulties[0], task.difficulty, task.difficulties[-1]):
        level = find_builtin(f"{task.name}:{difficulty}")
        for split, count in TASK_ROWS.items():
            rows = level.rows(count, split=split)
            assert len({row["prompt"] for row in rows}) == count
            assert set("".join(row["prompt"] + row["answer"] for row in rows)) <= set(ALPHABET)
            assert max(len(row["answer"]) for row in rows) < level.max_completion_length


@each_task
def test_the_named_rewards_tell_right_from_wrong(task: Task):
    assert task.rewards
    for settings in task.rewards:
        judge = getattr(verifiers, RewardConfig(**settings).name or "")
        for row in task.rows(20):
            assert judge(row["answer"], row["answer"]) == 1.0
            assert judge(row["answer"][:-1] + "?", row["answer"]) == 0.0


@each_task
def test_every_task_says_what_it_is(task: Task):
    example, answer = re.findall(r"`([^`]*)`", task.summary)
    assert SOLUTIONS[task.name](example) == answer


@given(st.text(alphabet="abcdefghij", min_size=1, max_size=8), st.text(alphabet="abcdefghij", max_size=8))
def test_the_independent_check_agrees_with_the_answer(word, guess):
    answer = min_first(word)
    assert letters_in_order(f"{word}>", answer) == 1.0
    assert letters_in_order(f"{word}>", guess) == float(guess == answer)


def test_a_fifth_of_the_problems_is_held_out():
    heldout = sum(split_of(str(number)) == "eval" for number in range(10_000))
    assert abs(heldout - 2000) < 5 * 40  # five standard deviations


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sorted", r"there is no task 'sorted'; allowed: sort, reverse.*\n  Did you mean 'sort'\?"),
        ("chess", r"there is no task 'chess'; allowed: sort, reverse, .* or reasoning_gym/NAME"),
        ("sort:99", r"task 'sort:99': its difficulty '99'; allowed: a number of letters from 4 to 16"),
        ("sort:", r"its difficulty ''; allowed: a number of letters"),
        ("sort:six", r"its difficulty 'six'; allowed: a number of letters"),
    ],
)
def test_names_that_are_none_say_which_there_are(name, message):
    with pytest.raises(DataError, match=message):
        find_task(name)


def test_more_rows_than_there_are_problems_is_an_error_with_the_number_there_is():
    few = replace(TASKS["addition"], difficulty=1)
    with pytest.raises(DataError, match=r"\d+ different ones; allowed: up to \d+ rows.\n  Set data.max_rows = \d+"):
        few.rows(1000)


def test_other_splits_are_refused():
    with pytest.raises(DataError, match="task sort has no split 'test'; allowed: train or eval"):
        TASKS["sort"].rows(1, split="test")


# --- reasoning-gym ---------------------------------------------------------------------------------------------------


def test_without_reasoning_gym_its_tasks_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(DataError, match=r'needs the package reasoning-gym .*\n  pip install "posttrain\[tasks\]"'):
        find_task("reasoning_gym/countdown")


def test_tasks_of_reasoning_gym_are_generated_and_scored_by_its_own_code():
    pytest.importorskip("reasoning_gym")
    from posttrain.tasks.reasoning_gym import score

    task = find_task("reasoning_gym/chain_sum")
    train, heldout = task.rows(20, seed=1), task.rows(20, seed=1, split="eval")
    assert task.rows(20, seed=1) == train
    assert not {row["prompt"] for row in train} & {row["prompt"] for row in heldout}
    for row in train:
        assert score(f"It is <answer>{row['answer']}</answer>", row["reasoning_gym"]) == 1.0
        assert score(row["answer"], row["reasoning_gym"]) == 1.0
        assert score("no idea", row["reasoning_gym"]) < 1.0
    with pytest.raises(DataError, match=r"reasoning-gym has no generator 'nope'; allowed: .*countdown"):
        find_task("reasoning_gym/nope")


def test_a_generator_of_reasoning_gym_takes_its_settings_after_a_colon():
    pytest.importorskip("reasoning_gym")
    from posttrain.tasks.reasoning_gym import score

    short = find_task("reasoning_gym/needle_haystack:min_num_statements=2,max_num_statements=2").rows(5)
    assert all(row["prompt"].count(".") == 3 for row in short), "two statements, and 'Reply only with a name.'"
    assert all(score(row["answer"], row["reasoning_gym"]) == 1.0 for row in short)
    examples = find_task("examples/reasoning_gym/needle_haystack:min_num_statements=2,max_num_statements=2").rows(5)
    assert examples == [{"prompt": row["prompt"], "completion": row["answer"]} for row in short]


@pytest.mark.parametrize("settings", ["terms=2", "min_terms", "min_terms=5,max_terms=2"])
def test_settings_that_a_generator_does_not_take_are_refused_with_those_it_has(settings):
    pytest.importorskip("reasoning_gym")
    with pytest.raises(DataError, match=r"reasoning-gym's chain_sum with .*; allowed: setting=value.* min_terms"):
        find_task(f"reasoning_gym/chain_sum:{settings}")
