"""The meaning of `FORM:NAME` in `data.train` and in `model.path`.

`posttrain/__init__.py` fills both tables. So data and models read such names without knowing the packages above them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class RowSource(Protocol):
    """Rows that are made rather than read from a file."""

    def rows(self, n: int, *, seed: int = 0, split: str = "train") -> list[dict[str, Any]]:
        """`n` rows with the columns prompt and answer: a pure function of the arguments."""
        ...


ROWS: dict[str, Callable[[str], RowSource]] = {}
"""`FORM` in `data.train` -> finds the rows of a NAME; raises `DataError` for a name that it does not know."""
MODELS: dict[str, Callable[[str, int], Path]] = {}
"""`FORM` in `model.path` -> the folder of the model that NAME and a seed stand for, built where it is missing."""
