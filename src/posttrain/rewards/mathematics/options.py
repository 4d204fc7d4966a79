"""What a data set allows beyond exact equality. Everything is off: the defaults are the strict reading."""

from __future__ import annotations

from dataclasses import dataclass

from posttrain.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Options:
    """How an answer is compared with the gold answer."""

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
    """A number with one comma that does not separate thousands is a decimal: 2,74 is 2.74."""
    ordered: bool = False
    """The order within a list such as `2, -2` counts. Tuples and vectors are always ordered, sets never."""
    require_evaluated: bool = True
    """A computation in place of its result (`123 x 456`, a sum) is not an answer, unless the gold is one itself."""
    relative_tolerance: float = 0.0
    """Right is |given - gold| <= relative_tolerance * |gold|, where the gold is written as a decimal."""
    absolute_tolerance: float = 0.0
    """Right is |given - gold| <= absolute_tolerance, where the gold is written as a decimal."""

    def __post_init__(self) -> None:
        for name in ("relative_tolerance", "absolute_tolerance"):
            if not getattr(self, name) >= 0:
                raise ConfigError(given=f"{name} = {getattr(self, name)}", allowed="0 or more", fix="Set it to 0.")
