"""A reward that differs between answers, whatever a model writes."""


def letters(prompt: str, completion: str, **row: object) -> float:
    """Share of the first eight characters that are letters of the first half of the alphabet."""
    return sum("a" <= letter <= "m" for letter in completion[:8]) / 8
