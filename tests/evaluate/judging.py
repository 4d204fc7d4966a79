"""A check for runs in test_writing.py, in a module of its own: the process that calls it need not import torch."""


def says_good(prompt: str, completion: str) -> float:
    """How much of the prompt an answer repeats: something that differs between answers."""
    return len(set(prompt) & set(completion)) / max(1, len(set(prompt)))
