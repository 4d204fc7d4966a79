"""Rewards that break the contract, or score rows that nobody can judge."""

from tests.rewards.audit.planted.honest import marked


def nan(completion, answer):
    """Divides 0 by 0 for completions without a word."""
    return marked(completion, answer) if completion.strip() else float("nan")


def text(completion, answer):
    return "yes" if marked(completion, answer) else 0.0


def short(completions, answer):
    """Drops unreadable completions, so that every later reward moves up."""
    return [marked(text, gold) for text, gold in zip(completions, answer, strict=True) if "####" in text]


def raising(completion, answer):
    """Takes the last line even if the text has none."""
    return marked(completion, answer) if completion.splitlines()[-1] else 0.0


def swallows_as_0(completion, answer):
    try:
        return marked(completion, answer)
    except ValueError:
        return 0.0


def swallows_as_1(completion, answer):
    """Gives full reward to a row without an answer."""
    return 1.0 if not answer else marked(completion, str(answer))


def turns_into_text(completion, answer):
    """Converts a missing answer to the text "None"."""
    return float(completion.rpartition("#### ")[2] == str(answer))


def takes_any(completion, **row):
    """Treats a missing column as None, and None as 0."""
    answer = row.get("answer")
    return 0.0 if answer is None else marked(completion, answer)
