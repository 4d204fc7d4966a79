"""A reward: the share of vowels in an answer."""


def vowels(completion: str, extra: str = "") -> float:
    """From 0 to 1; `extra` are letters that count as vowels, too."""
    return sum(letter in "aeiou" + extra for letter in completion) / max(1, len(completion))
