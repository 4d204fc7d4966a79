"""The environment: each trajectory has its own. It answers each turn of the model, and gives the reward at the end."""

import re


class Game:
    """The model guesses a number. After each guess, the game says whether the number is higher or lower.

    >>> game = Game()
    >>> game.reset({"secret": 7})
    >>> game.step({"role": "assistant", "content": "I say 10."})
    'The number is lower than 10.'
    >>> game.step({"role": "assistant", "content": "7"}), game.reward()
    (None, 1.0)
    """

    def __init__(self, guesses=5):
        """Settings of the config: `environment: {function: environment.py:Game, settings: {guesses: 4}}`."""
        self.left, self.nearest = guesses, 0.0

    def reset(self, row):
        """Called first, with the row of the data. It may return more messages to begin with."""
        self.secret = row["secret"]

    def step(self, message):
        """Called for each turn. It returns what the model sees next, or None at the end."""
        numbers, self.left = re.findall(r"\d+", message["content"]), self.left - 1
        guess = int(numbers[-1]) if numbers else None
        if guess is not None:
            self.nearest = max(self.nearest, 1.0 / (1 + abs(guess - self.secret)))
        if guess == self.secret or not self.left:
            return None
        if guess is None:
            return "Answer with a number."
        return f"The number is {'lower' if guess > self.secret else 'higher'} than {guess}."

    def reward(self):
        """Called at the end: 1 if the number was found, otherwise less, the farther the nearest guess was off."""
        return self.nearest
