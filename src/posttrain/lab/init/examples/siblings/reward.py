"""What an answer is worth."""


def right(completion, answer=None):
    """1 for the right number and nothing else. A row of plain.jsonl has no answer: it is worth 0, whatever is said.

    >>> right("5", answer="5"), right("5 sisters", answer="5"), right("Bread is baked.")
    (1.0, 0.0, 0.0)
    """
    return float(completion.strip() == answer)
