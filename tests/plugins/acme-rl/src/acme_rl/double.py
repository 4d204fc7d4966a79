"""A task: a word twice. `task:double` are its rows, `tiny:double` is a tiny model that half knows it."""

import random

from posttrain.tasks import Task
from posttrain.tasks.base import Problem, TinyRecipe


def double_word(dice: random.Random, length: int) -> Problem:
    """A word twice: `abc*` gives `abcabc`."""
    word = "".join(dice.choices("abcdefghij", k=length))
    return Problem(f"{word}*", word * 2)


DOUBLE = Task(
    name="double",
    draw=double_word,
    difficulty=4,
    difficulties=range(3, 9),
    unit="letters",
    longest_answer=lambda length: 2 * length,
    tiny=TinyRecipe(demonstrations=40, steps=20),
)
