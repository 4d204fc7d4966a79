"""A second look at the answers. Training never uses it. If it disagrees with the reward, the run says so."""

import re


def check(prompt, completion, answer, **row):
    """1 if the last number of the completion is the answer.

    >>> check("What is 2 + 3?", "2 + 3 = 5.", "5"), check("What is 2 + 3?", "5, or 6", "5")
    (1.0, 0.0)
    """
    numbers = re.findall(r"-?\d+", completion)
    return float(bool(numbers) and int(numbers[-1]) == int(answer))
