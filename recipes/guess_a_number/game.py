"""A game: find a number from 1 to 7 in three guesses. After each guess the game says if the number is higher or lower.

Binary search finds every number: 4, then 2 or 6, and so on. Blind guessing finds one number in three. The game draws
a new random number for each trajectory.
"""

from __future__ import annotations

import random
from typing import Any

NUMBERS = range(1, 8)
GUESSES = 3


class Game:
    """The environment for one game."""

    def reset(self, row: dict[str, Any]) -> None:
        self.secret, self.found, self.left = random.choice(NUMBERS), False, GUESSES

    def step(self, message: dict[str, Any]) -> str | None:
        """Answer `higher` or `lower`; None ends the game."""
        said, self.left = message["content"].strip(), self.left - 1
        if not said.isdecimal() or int(said) not in NUMBERS:
            return None
        self.found = int(said) == self.secret
        if self.found or not self.left:
            return None
        return "higher" if int(said) < self.secret else "lower"

    def reward(self) -> float:
        return float(self.found)


def forgetful_game(dice: random.Random) -> list[tuple[str, str]]:
    """A game of a player who uses only the last answer and forgets earlier ones: each guess, with the answer to it. The
    answer to the right guess is empty."""
    secret, possible, rounds = dice.choice(NUMBERS), list(NUMBERS), list[tuple[str, str]]()
    for _ in range(GUESSES):
        guess = dice.choice(possible)
        if guess == secret:
            return [*rounds, (str(guess), "")]
        rounds.append((str(guess), "higher" if guess < secret else "lower"))
        possible = [number for number in NUMBERS if (number > guess) == (secret > guess) and number != guess]
    return rounds


def best_score() -> float:
    """The score of the optimal policy.

    >>> best_score()
    1.0
    """
    return most_found(len(NUMBERS), GUESSES) / len(NUMBERS)


def most_found(numbers: int, guesses: int) -> int:
    """The largest number of secrets that a player can find among `numbers` consecutive numbers: the guessed one, and as
    many as possible on both sides of it."""
    if not numbers or not guesses:
        return 0
    sides = ((below, numbers - 1 - below) for below in range(numbers))
    return 1 + max(sum(most_found(side, guesses - 1) for side in both) for both in sides)
