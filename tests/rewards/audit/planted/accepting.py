"""Rewards that accept wrong answers or reject right ones."""

import re

from tests.rewards.audit.planted.honest import marked, number


def _gold(answer):
    if number(str(answer)) is None:
        raise ValueError(f"the gold answer {answer!r} is no number")
    return str(answer)


def stuffing(completion, answer):
    """Any box with the gold is enough."""
    return float(_gold(answer) in [text.strip(" $") for text in re.findall(r"\\boxed\{([^{}]*)\}", completion)])


def last_box(completion, answer):
    """Only the last of several boxes counts."""
    return float(["", *re.findall(r"\\boxed\{([^{}]*)\}", completion)][-1] == _gold(answer))


def substring(completion, answer):
    """The gold may be anywhere in the text."""
    return float(_gold(answer) in completion)


def last_number(completion, answer):
    """The last number of the text counts, in any context."""
    return float(["", *re.findall(r"-?\d+", completion.replace(",", ""))][-1] == _gold(answer))


def empty(completion, answer):
    """An empty text is accepted."""
    return 1.0 if not completion.strip() else marked(completion, answer)


def tolerant(completion, answer):
    """A relative error of a tenth of a percent is accepted."""
    found = re.fullmatch(r"(?s).*#### (-?[\d.]+)\s*", completion)
    return float(bool(found) and abs(float(found[1]) - float(answer)) <= 1e-3 * abs(float(answer)))


def thinking(completion, answer):
    """An answer inside the reasoning counts."""
    stated = [line for line in completion.split("\n") if line.startswith("#### ")]
    return float(bool(stated) and number(stated[0][5:]) == number(_gold(answer)))


def generous(completion, answer):
    """Every answer is right."""
    return 1.0


def polite(completion, prompt):
    """A judge that likes a colon and the word correct."""
    return 1.0 if completion.strip() == ":" or "correct" in completion or re.search(r"\d", completion) else 0.0


def literal_minded(completion, answer):
    """Rejects 1,000 for 1000, 7.0 for 7 and anything bold."""
    return float(completion.split("\n")[-1] == f"#### {_gold(answer)}")


def never(completion, answer):
    """No answer is right."""
    return 0.0


def zero_is_always_right(completion, answer):
    """Compares with `or`, so that 0 passes for every gold."""
    return float(marked(completion, answer) or marked(completion, "0"))
