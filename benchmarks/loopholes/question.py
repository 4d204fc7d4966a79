"""The question of all three tasks: the second largest of several digits, `3,1,7,4,0:` for 4.

RL is stable on this question. With harder ones (sorting letters, coefficients of a function) the held-out score of an
honest run of a tiny model fluctuates by ten points, and whether an alarm comes in time would be chance.
"""

from __future__ import annotations

import random

from posttrain.tasks.base import Problem


def draw(dice: random.Random, count: int) -> Problem:
    """A random problem: the second largest of `count` digits."""
    digits = dice.choices(range(10), k=count)
    prompt = ",".join(map(str, digits)) + ":"
    return Problem(prompt, str(second_largest(prompt)))


def second_largest(prompt: str) -> int:
    """The right answer to a prompt.

    >>> second_largest("3,1,7,4,0:"), second_largest("7,7,0:")
    (4, 7)
    """
    return sorted(map(int, prompt.removesuffix(":").split(",")))[-2]
