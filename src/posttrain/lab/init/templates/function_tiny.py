"""The reward: one function, called for each answer. Every column of the data is an argument, too."""


def score(prompt, completion, **row):
    """0 to 1: the share of letters in the right place. The right answer is the prompt's word spelled backwards.

    A nearly right answer gets part of the reward, so that the model learns before it is ever right.

    >>> score("dbca<", "acbd"), score("dbca<", "acb"), score("dbca<", "")
    (1.0, 0.75, 0.0)
    """
    word = prompt.removesuffix("<")[::-1]
    right = sum(given == wanted for given, wanted in zip(completion, word, strict=False))
    return right / max(len(word), len(completion))
