"""The meaning of `FORM:NAME` in `data.train` and in `model.path`.

`posttrain/__init__.py` fills both tables. So `data` and `models` resolve such names without importing the packages
above them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class RowSource(Protocol):
    """Rows that are made rather than read from a file."""

    def rows(self, n: int, *, seed: int = 0, split: str = "train") -> list[dict[str, Any]]:
        """Make `n` rows with the columns prompt and answer. The result depends on the arguments alone."""
        ...


ROWS: dict[str, Callable[[str], RowSource]] = {}
"""`FORM` in `data.train` -> a function from NAME to its rows. It raises `DataError` for an unknown name."""
MODELS: dict[str, Callable[[str, int], Path]] = {}
"""`FORM` in `model.path` -> a function from NAME and a seed to a model's folder, which is built if it is missing."""
