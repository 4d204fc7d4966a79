"""Relaxations of exact equality for a dataset. All are off by default: the default is strict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from posttrain.errors import ConfigError

AnswerFrom = Literal["box", "tag", "last_line", "anywhere"]
"""The part of the final turn, after the reasoning, that contains the answer.

    box        the box: \\boxed{7}; several boxes must have one value. The text around it is not read.
    tag        <answer>7</answer>; several tags must have one value. The text around it is not read.
    last_line  the last line with a letter or a digit: `#### 7`, `The answer is 7.`, `7`, a box
    anywhere   boxes and tags, else statements such as "The answer is", else the last sentence; statements that
               contradict the box count against it
"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How an answer is compared with the gold answer."""

    answer_from: AnswerFrom = "anywhere"
    """The place of the answer: see `AnswerFrom`."""
    percent: bool = False
    """A percent sign may be left out or added: 7 is right for 7%. If off, 7% only equals 0.07."""
    words: bool = False
    """Any noun may follow a number if the gold has none: `18 eggs` for 18. If off, only units of measurement may."""
    base: bool = False
    """The subscript that names the base may be left out: 101 is right for 101_2."""
    ignore_case: bool = False
    """Words and choices are compared without case: `tuesday` for Tuesday. Symbols never are: x is not X."""
    natural_log: bool = False
    """`log` without a base is the natural logarithm. If off, the two are different."""
    decimal_comma: bool = False
    """Two integers with a comma and no space between them may be a decimal as well as a list: 2,74 is 2.74. If off,
    this holds only if the gold is written with a decimal point."""
    ordered: bool = False
    """The order within a list such as `2, -2` counts. Tuples and vectors are always ordered, sets never."""
    require_evaluated: bool = True
    """A computation instead of its result (`123 x 456`, a sum) is not an answer, unless the gold is a computation."""
    last_side: bool = False
    """The last side of a chain is its value, whatever the others are: `x = 5 + 5 = 7 = 11`, "is 10, which is 11". A
    number after ≈ is not a side, except in `x ≈ 11`. If off, a chain with different sides is ambiguous."""
    rounded_places: int = 0
    """A decimal with at least this many places is right if the gold, which no decimal equals, rounds to it: with 2,
    0.33 for 1/3 and 3.14 for π, but not 0.3. With 0, a rounded decimal is never right for an exact gold."""
    bare_points: bool = False
    """The brackets of a point, a vector or an interval may be left out: 1, 3 is right for (1, 3), and 3, 1 is not."""
    final_statement: bool = False
    """A number or formula that is stated as the "final answer" after all boxes replaces them. If off, both must have
    the same value."""
    every_box: bool = False
    """The boxes of a gold solution form one list if no words and numbers are between them. If off, the last box is the
    answer, unless only commas and "and" separate the boxes."""
    inequality_as_set: bool = True
    """An inequality is right for the set of its solutions: -2 <= x <= 7 for [-2, 7]."""
    relative_tolerance: float = 0.0
    """If the gold is written as a decimal, |given - gold| <= relative_tolerance * |gold| is right."""
    absolute_tolerance: float = 0.0
    """If the gold is written as a decimal, |given - gold| <= absolute_tolerance is right."""

    def __post_init__(self) -> None:
        if self.answer_from not in get_args(AnswerFrom):
            raise ConfigError(given=f"answer_from = {self.answer_from!r}", allowed=", ".join(get_args(AnswerFrom)))
        for name in ("relative_tolerance", "absolute_tolerance", "rounded_places"):
            if not getattr(self, name) >= 0:
                raise ConfigError(given=f"{name} = {getattr(self, name)}", allowed="0 or more", fix="Set it to 0.")
