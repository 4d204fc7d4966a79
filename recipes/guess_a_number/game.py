"""A number from 1 to 7 is to be found in three guesses; after each the game says whether it is higher or lower.

Whoever halves what is left finds every number: 4, then 2 or 6, and so on. Whoever guesses blindly finds one in three.
Which number it is, the game draws by lot, for each trajectory another.
"""

from __future__ import annotations

import random
from typing import Any

NUMBERS = range(1, 8)
GUESSES = 3


class Game:
    """The environment of one game."""

    def reset(self, row: dict[str, Any]) -> None:
        self.secret, self.found = random.choice(NUMBERS), False

    def step(self, message: dict[str, Any]) -> str | None:
        """`higher`, `lower`, or nothing more to say."""
        said = message["content"].strip()
        if not said.isdecimal() or int(said) not in NUMBERS:
            return None
        self.found = int(said) == self.secret
        if self.found:
            return None
        return "higher" if int(said) < self.secret else "lower"

    def reward(self) -> float:
        return float(self.found)
