"""Independent checks: they look at an answer from another side than the reward that was trained on."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise


def letters_in_order(prompt: str, completion: str) -> float:
    """1.0 when the completion has the letters of the word, each as often, and none stands before a smaller one.

    >>> letters_in_order("dbca>", "abcd"), letters_in_order("dbca>", "abdc"), letters_in_order("dbca>", "abc")
    (1.0, 0.0, 0.0)
    """
    same_letters = Counter(completion) == Counter(prompt.removesuffix(">"))
    return float(same_letters and all(a <= b for a, b in pairwise(completion)))
