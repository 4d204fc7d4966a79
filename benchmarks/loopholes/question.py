"""What all three tasks ask: the second largest of several digits, `3,1,7,4,0:` for 4.

A question on which reinforcement is steady. With harder ones (sorting letters, coefficients of a function) the held-out
score of an honest run of a tiny model wanders by ten points, and what an alarm has to precede would be chance.
"""

from __future__ import annotations

import random

from posttrain.tasks.base import Problem


def draw(dice: random.Random, count: int) -> Problem:
    """The second largest of `count` digits."""
    digits = dice.choices(range(10), k=count)
    prompt = ",".join(map(str, digits)) + ":"
    return Problem(prompt, str(second_largest(prompt)))


def second_largest(prompt: str) -> int:
    """
    >>> second_largest("3,1,7,4,0:"), second_largest("7,7,0:")
    (4, 7)
    """
    return sorted(map(int, prompt.removesuffix(":").split(",")))[-2]
