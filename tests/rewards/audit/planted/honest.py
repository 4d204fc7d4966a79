"""Rewards without a defect: no check may fail on them."""

import re
from fractions import Fraction

NUMBER = re.compile(r"-?\d{1,12}(?:\.\d{1,6})?")


def number(text: str) -> Fraction | None:
    """The value of one plain number in any usual spelling."""
    text = text.strip().strip("*$ ").removesuffix(".")
    return Fraction(text.replace(",", "")) if NUMBER.fullmatch(text.replace(",", "")) else None


def marked(completion, answer):
    """The line `#### number` occurs once, after the reasoning, and has the gold."""
    gold = number(answer.rpartition("####")[2]) if isinstance(answer, str) else None
    if gold is None:
        raise ValueError(f"the gold answer {answer!r} is no number")
    _, opened, rest = completion.partition("<think>")
    text = rest.partition("</think>")[2] if opened else completion
    stated = [line for line in text.split("\n") if "####" in line]
    return float(len(stated) == 1 and stated[0].startswith("#### ") and number(stated[0][5:]) == gold)


def marked_batch(completions, answer, **columns):
    """The same reward, with one call per batch."""
    return [marked(completion, gold) for completion, gold in zip(completions, answer, strict=True)]


async def marked_async(completion, answer):
    """The same reward, as a coroutine."""
    return marked(completion, answer)


def marked_tokens(completion, completion_ids, answer):
    """The same reward, on the last of the completion's tokens."""
    right = marked(completion, answer)
    return [0.0] * (len(completion_ids) - 1) + [right] * bool(completion_ids)


def marked_tokens_batch(completions, completion_ids, answer):
    """The same reward on the last tokens, with one call per batch."""
    return [marked_tokens(*one) for one in zip(completions, completion_ids, answer, strict=True)]


marked_tokens.per_token = marked_tokens_batch.per_token = True


def opened(completion):
    """A reward for format alone: there must be text between the tags."""
    return float(bool(re.fullmatch(r"<think>[^<]*</think>\s*<answer>[^<]+</answer>\s*", completion)))


def brevity(completion, target=400):
    """A reward for length alone."""
    return max(0.0, 1 - len(completion) / target)
