"""The reward: one function, called for each answer. Every column of the data is an argument, too."""


def score(prompt, completion, words, **row):
    """0 to 1: how close the answer is to the requested number of words, in the column `words`.

    A nearly right answer gets part of the reward, so that the model learns before it is ever right.

    >>> score("...", "The sea is calm today", 5), score("...", "The sea", 4), score("...", "", 5)
    (1.0, 0.5, 0.0)
    """
    length = len(completion.split())
    return max(0.0, 1.0 - abs(length - words) / words)
