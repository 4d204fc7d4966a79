"""Independent checks: they judge an answer in another way than the training reward."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise


def letters_in_order(prompt: str, completion: str) -> float:
    """1.0 if the completion has the same letters as the word, with the same counts, in ascending order.

    >>> letters_in_order("dbca>", "abcd"), letters_in_order("dbca>", "abdc"), letters_in_order("dbca>", "abc")
    (1.0, 0.0, 0.0)
    """
    same_letters = Counter(completion) == Counter(prompt.removesuffix(">"))
    return float(same_letters and all(a <= b for a, b in pairwise(completion)))
