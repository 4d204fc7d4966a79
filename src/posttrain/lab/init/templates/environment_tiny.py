"""The environment: each trajectory has its own. It answers each turn of the model, and gives the reward at the end."""


class Word:
    """The model spells a word backwards in two tries. After the first try it sees the letters in the right place.

    >>> word = Word()
    >>> word.reset({"answer": "acbd"})
    >>> word.step({"role": "assistant", "content": "abcd"})
    'a--d'
    >>> word.step({"role": "assistant", "content": "acbd"}), word.reward()
    (None, 1.0)
    """

    def __init__(self, tries=2):
        """Settings of the config: `environment: {function: environment.py:Word, settings: {tries: 3}}`."""
        self.left, self.share = tries, 0.0

    def reset(self, row):
        """Called first, with the row of the data. It may return more messages to begin with."""
        self.answer = row["answer"]

    def step(self, message):
        """Called for each turn. It returns what the model sees next, or None at the end."""
        said, self.left = message["content"], self.left - 1
        right = [given == wanted for given, wanted in zip(said, self.answer, strict=False)]
        self.share = sum(right) / max(len(said), len(self.answer))
        if self.share == 1 or not self.left:
            return None
        shown = [letter if is_right else "-" for letter, is_right in zip(self.answer, right, strict=False)]
        return "".join(shown).ljust(len(self.answer), "-")

    def reward(self):
        """Called at the end: the share of right letters in the last try, so that a nearly right try counts."""
        return self.share
