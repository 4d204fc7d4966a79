"""The same reward: one answer, compared as an exact number; rows without one are refused; nothing else is paid."""

import re
from fractions import Fraction

NUMBER = re.compile(r"-?\d{1,12}(\.\d{1,6})?")


def number(text):
    """The exact value of one number, or None. Currency signs, commas and bold are how people write numbers."""
    plain = re.sub(r"^\\text\{(.*)\}$", r"\1", text.strip()).strip("*$\\ ").replace(",", "").removesuffix(".")
    return Fraction(plain) if NUMBER.fullmatch(plain) else None


def grade(completion, answer):
    gold = number(answer.split("####")[-1]) if isinstance(answer, str) else None
    if gold is None:
        raise ValueError(f"the gold answer {answer!r} is not a number")
    if "<think>" in completion:  # what stands in the reasoning is not the answer
        completion = completion.rpartition("</think>")[2] if "</think>" in completion else ""
    stated = re.findall(r"\\boxed\{([^{}]*(?:\{[^{}]*\})?)\}|^####(.*)$", completion, re.MULTILINE)
    values = {number("".join(one)) for one in stated}
    return float(values == {gold})  # several answers are right only if they agree
