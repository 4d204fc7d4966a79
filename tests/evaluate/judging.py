"""A check for runs in test_writing.py, in a separate module: the process that calls it need not import torch."""


def says_good(prompt: str, completion: str) -> float:
    """The share of the prompt that an answer repeats, which differs between answers."""
    return len(set(prompt) & set(completion)) / max(1, len(set(prompt)))
