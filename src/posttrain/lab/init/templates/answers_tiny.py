"""A second look at the answers. Training never uses it. If it disagrees with the reward, the run says so."""


def check(prompt, completion, **row):
    """1 if the word of the prompt is spelled backwards.

    >>> check("dbca<", "acbd"), check("dbca<", "dbca")
    (1.0, 0.0)
    """
    word = prompt.removesuffix("<")
    return float(len(completion) == len(word) and all(a == b for a, b in zip(word, reversed(completion), strict=True)))
