"""The reward for an answer."""


def right(completion, answer=None):
    """1 if the completion is exactly the right number. A row of plain.jsonl has no answer, so its reward is always 0.

    >>> right("5", answer="5"), right("5 sisters", answer="5"), right("Bread is baked.")
    (1.0, 0.0, 0.0)
    """
    return float(completion.strip() == answer)
