"""Relaxations of exact equality for a data set. All are off by default: the default reading is strict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from posttrain.errors import ConfigError

AnswerFrom = Literal["box", "tag", "last_line", "anywhere"]
"""Which part of the final turn, behind the reasoning, says what the answer is.

    box        the box: \\boxed{7}; several boxes must have one value. What stands around it is not read.
    tag        <answer>7</answer>; several tags must have one value. What stands around it is not read.
    last_line  the last line with a letter or a digit: `#### 7`, `The answer is 7.`, `7`, a box
    anywhere   boxes and tags, else statements such as "The answer is", else the last sentence; statements that
               contradict the box count against it
"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How an answer is compared with the gold answer."""

    answer_from: AnswerFrom = "anywhere"
    """Where the answer stands: see `AnswerFrom`."""
    percent: bool = False
    """A percent sign may be left out or added: 7 is right for 7%. Off, 7% is 0.07 and nothing else."""
    words: bool = False
    """Any noun may follow a number whose gold has none: `18 eggs` for 18. Off, only units of measurement may."""
    base: bool = False
    """The subscript that names the base may be left out: 101 is right for 101_2."""
    ignore_case: bool = False
    """Words and choices are compared without regard to case: `tuesday` for Tuesday. Never symbols: x is not X."""
    natural_log: bool = False
    """`log` without a base is the natural logarithm; off, the two are different."""
    decimal_comma: bool = False
    """Two integers with a comma between them, and no space, may be a decimal as well as a list: 2,74 is 2.74. Off, they
    may where the gold is written with a decimal point."""
    ordered: bool = False
    """The order within a list such as `2, -2` counts. Tuples and vectors are always ordered, sets never."""
    require_evaluated: bool = True
    """A computation in place of its result (`123 x 456`, a sum) is not an answer, unless the gold is one itself."""
    last_side: bool = False
    """The last side of a chain is its value, whatever the others are: `x = 5 + 5 = 7 = 11`, "is 10, which is 11"; what
    follows ≈ is none of its sides, but for `x ≈ 11`. Off, a chain whose sides differ is ambiguous."""
    rounded_places: int = 0
    """A decimal with so many places or more is right if the gold, which no decimal equals, rounds to it: with 2, 0.33
    for 1/3 and 3.14 for π, but not 0.3. 0: an exact gold never takes a rounded decimal."""
    bare_points: bool = False
    """The brackets of a point, a vector or an interval may be left out: 1, 3 is right for (1, 3), and 3, 1 is not."""
    final_statement: bool = False
    """A number or formula that is stated as the "final answer" behind all boxes takes their place. Off, both must have
    the same value."""
    every_box: bool = False
    """The boxes of a gold solution are one list where no word and no number stands between them. Off, its last box is
    the answer, unless nothing but commas and "and" separate them."""
    inequality_as_set: bool = True
    """An inequality is right for the set of its solutions: -2 <= x <= 7 for [-2, 7]."""
    relative_tolerance: float = 0.0
    """Right is |given - gold| <= relative_tolerance * |gold|, where the gold is written as a decimal."""
    absolute_tolerance: float = 0.0
    """Right is |given - gold| <= absolute_tolerance, where the gold is written as a decimal."""

    def __post_init__(self) -> None:
        if self.answer_from not in get_args(AnswerFrom):
            raise ConfigError(given=f"answer_from = {self.answer_from!r}", allowed=", ".join(get_args(AnswerFrom)))
        for name in ("relative_tolerance", "absolute_tolerance", "rounded_places"):
            if not getattr(self, name) >= 0:
                raise ConfigError(given=f"{name} = {getattr(self, name)}", allowed="0 or more", fix="Set it to 0.")
