"""The reward: one function, called for each answer. Every column of the data is an argument, too."""


def score(prompt, completion, words, **row):
    """0 to 1: how near an answer comes to the number of words that was asked for, in the column `words`.

    An answer that is nearly right is worth more than none: so the model learns before it is ever right.

    >>> score("...", "The sea is calm today", 5), score("...", "The sea", 4), score("...", "", 5)
    (1.0, 0.5, 0.0)
    """
    length = len(completion.split())
    return max(0.0, 1.0 - abs(length - words) / words)
