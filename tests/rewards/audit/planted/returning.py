"""Rewards that break the contract, or score rows that nobody can judge."""

from tests.rewards.audit.planted.honest import marked


def nan(completion, answer):
    """0 / 0 for completions without a word."""
    return marked(completion, answer) if completion.strip() else float("nan")


def text(completion, answer):
    return "yes" if marked(completion, answer) else 0.0


def short(completions, answer):
    """Drops what it cannot read, so that every later reward moves up."""
    return [marked(text, gold) for text, gold in zip(completions, answer, strict=True) if "####" in text]


def raising(completion, answer):
    """Takes the last line of a text that has none."""
    return marked(completion, answer) if completion.splitlines()[-1] else 0.0


def swallows_as_0(completion, answer):
    try:
        return marked(completion, answer)
    except ValueError:
        return 0.0


def swallows_as_1(completion, answer):
    """A row without an answer is a present."""
    return 1.0 if not answer else marked(completion, str(answer))


def turns_into_text(completion, answer):
    """str(None) is a fine answer."""
    return float(completion.rpartition("#### ")[2] == str(answer))


def takes_any(completion, **row):
    """A column that is missing is None, and None is 0."""
    answer = row.get("answer")
    return 0.0 if answer is None else marked(completion, answer)
