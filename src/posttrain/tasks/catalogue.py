"""The built-in tasks. Each has a function that draws a problem of a given difficulty, and an entry in the table."""

from __future__ import annotations

import difflib
import random
import string
from dataclasses import replace

from posttrain.errors import DataError
from posttrain.plugins import Plugin, published
from posttrain.sources import RowSource
from posttrain.tasks.base import Problem, Task, TinyRecipe
from posttrain.tasks.examples import ExampleTask, JudgementTask
from posttrain.tasks.preferences import LabelTask, PreferenceTask
from posttrain.tasks.taste import TasteTask

TEN_LETTERS = string.ascii_lowercase[:10]
NUMBER_REWARDS = ({"name": "exact_match"}, {"name": "numeric"})


def sort_letters(dice: random.Random, length: int) -> Problem:
    """The letters of a word in alphabetical order: `dbca>` gives `abcd`."""
    word = dice.choices(TEN_LETTERS, k=length)
    return Problem("".join(word) + ">", "".join(sorted(word)))


def reverse_word(dice: random.Random, length: int) -> Problem:
    """A word read backwards: `dbca<` gives `acbd`."""
    word = dice.choices(TEN_LETTERS, k=length)
    return Problem("".join(word) + "<", "".join(reversed(word)))


def add_numbers(dice: random.Random, digits: int) -> Problem:
    """The sum of two numbers: `47+35=` gives `82`."""
    a, b = (dice.randrange(10 ** (digits - 1), 10**digits) for _ in range(2))
    return Problem(f"{a}+{b}=", str(a + b))


def find_maximum(dice: random.Random, count: int) -> Problem:
    """The largest of several two-digit numbers: `31,17,64:` gives `64`."""
    numbers = [dice.randrange(10, 100) for _ in range(count)]
    return Problem(",".join(map(str, numbers)) + ":", str(max(numbers)))


def count_letter(dice: random.Random, length: int) -> Problem:
    """How often a letter occurs in a word: `a:cabbac=` gives `2`."""
    letter, word = dice.choice("abc"), dice.choices("abc", k=length)
    return Problem(f"{letter}:{''.join(word)}=", str(word.count(letter)))


def calculate(dice: random.Random, terms: int) -> Problem:
    """The value of a sum of numbers below 20, each with its sign: `7-12+4=` gives `-1`."""
    signed = [dice.choice((1, -1)) * dice.randrange(20) for _ in range(terms - 1)]
    first = dice.randrange(20)
    return Problem(f"{first}{''.join(f'{n:+d}' for n in signed)}=", str(first + sum(signed)))


def _identity(difficulty: int) -> int:
    return difficulty


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            name="sort",
            draw=sort_letters,
            difficulty=6,
            difficulties=range(4, 17),
            unit="letters",
            longest_answer=_identity,
            tiny=TinyRecipe(demonstrations=40),
        ),
        Task(
            name="reverse",
            draw=reverse_word,
            difficulty=5,
            difficulties=range(4, 17),
            unit="letters",
            longest_answer=_identity,
            tiny=TinyRecipe(demonstrations=100),
        ),
        Task(
            name="addition",
            draw=add_numbers,
            difficulty=2,
            difficulties=range(2, 9),
            unit="digits",
            longest_answer=lambda digits: digits + 1,
            rewards=NUMBER_REWARDS,
            tiny=TinyRecipe(demonstrations=300, steps=500),
        ),
        Task(
            name="maximum",
            draw=find_maximum,
            difficulty=4,
            difficulties=range(2, 13),
            unit="numbers",
            longest_answer=lambda _: 2,
            rewards=NUMBER_REWARDS,
            tiny=TinyRecipe(demonstrations=120),
        ),
        Task(
            name="count",
            draw=count_letter,
            difficulty=10,
            difficulties=range(8, 21),
            unit="letters",
            longest_answer=lambda length: len(str(length)),
            rewards=NUMBER_REWARDS,
            tiny=TinyRecipe(demonstrations=40),
        ),
        Task(
            name="arithmetic",
            draw=calculate,
            difficulty=3,
            difficulties=range(3, 11),
            unit="terms",
            longest_answer=lambda terms: len(str(-19 * terms)),
            rewards=NUMBER_REWARDS,
            tiny=TinyRecipe(demonstrations=1000, steps=500),
        ),
    )
}


def find_task(name: str) -> RowSource:
    """The row source that `task:name` means.

    Prompts: `sort`, `sort:8` (another difficulty), `reasoning_gym/NAME`, `environment/NAME` (of the package verifiers,
    with one answer), `verifiers/NAME` and `gymnasium/ID` (with several turns). Preferences: `pairs/sort`,
    `labels/sort`, and `pairs/taste`, `labels/taste`, where only the preferences show what is good. Demonstrations:
    `examples/sort`, `examples/taste`, `examples/reasoning_gym/NAME`, and `judgements/sort` for judging. Also all tasks
    of other packages. Raises `DataError` for an unknown name or difficulty.

    >>> find_task("sort:8").rows(1)
    [{'prompt': 'dadbghih>', 'answer': 'abddghhi'}]
    """
    if name.startswith("reasoning_gym/"):
        from posttrain.tasks.reasoning_gym import ReasoningGymTask

        return ReasoningGymTask.named(name.removeprefix("reasoning_gym/"))
    if name.startswith("verifiers/"):
        from posttrain.tasks.played import PlayedTask

        return PlayedTask.named(name.removeprefix("verifiers/"))
    if name.startswith("gymnasium/"):
        from posttrain.tasks.played import GymnasiumTask

        return GymnasiumTask(name=name.removeprefix("gymnasium/"))
    if name.startswith("environment/"):
        from posttrain.tasks.environments import EnvironmentTask

        return EnvironmentTask.named(name.removeprefix("environment/"))
    if name in ("pairs/taste", "labels/taste"):
        return TasteTask(labelled=name == "labels/taste")
    if name.startswith("pairs/"):
        return PreferenceTask(task=find_builtin(name.removeprefix("pairs/")))
    if name.startswith("labels/"):
        return LabelTask(task=find_builtin(name.removeprefix("labels/")))
    if name.startswith("judgements/"):
        return JudgementTask(task=PreferenceTask(task=find_builtin(name.removeprefix("judgements/"))))
    if name.startswith("examples/"):
        stem = name.removeprefix("examples/")
        if stem.startswith("reasoning_gym/"):
            return ExampleTask(task=find_task(stem))
        return ExampleTask(task=TasteTask(labelled=False) if stem == "taste" else find_builtin(stem))
    others = published_tasks()
    stem = name.partition(":")[0]
    source = _source(others[stem]) if stem in others else None
    return find_builtin(name) if source is None or isinstance(source, Task) else source


def published_tasks() -> dict[str, Plugin]:
    """The tasks of other packages, by name. A warning names the packages that publish the name of a built-in task."""
    return published("task", TASKS)


def _source(plugin: Plugin) -> RowSource:
    """The task or the source of rows that a package publishes. Raises PluginError, which names the package."""
    source = plugin.load()
    if isinstance(source, type) or not callable(getattr(source, "rows", None)):
        plugin.refuse(f"is {source!r}", "a posttrain.tasks.Task, or an object with rows(n, *, seed, split)")
    if isinstance(source, Task) and source.name != plugin.name:
        plugin.refuse(f"calls itself {source.name!r}", "a task with the name under which it is published")
    return source


def find_builtin(name: str) -> Task:
    """The task with this name, such as `sort` or `sort:8`, built in or from another package. Raises `DataError`."""
    stem, colon, level = name.partition(":")
    others = published_tasks()
    task = TASKS[stem] if stem in TASKS else _source(others[stem]) if stem in others else None
    if not isinstance(task, Task):
        close = difflib.get_close_matches(stem, [*TASKS, *others], n=1)
        what = f"there is no task {stem!r}" if task is None else f"the task {stem!r} is not a posttrain.tasks.Task"
        raise DataError(
            given=what,
            allowed=", ".join([*TASKS, *others])
            + ", environment/NAME, verifiers/NAME, gymnasium/ID, or reasoning_gym/NAME",
            fix=f"Did you mean {close[0]!r}?" if close and task is None else "",
        )
    if not colon:
        return task
    if not level.isdecimal() or int(level) not in task.difficulties:
        levels = task.difficulties
        raise DataError(
            given=f"task {name!r}: its difficulty {level!r}",
            allowed=f"a number of {task.unit} from {levels[0]} to {levels[-1]}",
            fix=f"Write {stem}:{task.difficulty}, or {stem} alone, which means the same.",
        )
    return replace(task, difficulty=int(level))
