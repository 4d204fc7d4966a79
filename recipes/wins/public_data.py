"""What the recipes read from the folder of public data beside the checkout. docs/recipes.md says what it holds."""

from __future__ import annotations

from pathlib import Path

from posttrain.errors import DataError

SHARED = Path(__file__).parents[3] / "shared" / "data"


def require(*paths: Path | str) -> None:
    """Raise DataError if a file or folder is missing."""
    for path in map(Path, paths):
        if not path.exists():
            raise DataError(
                given=f"{path} is missing",
                fix=f"This recipe reads public data from {SHARED.resolve()}. "
                "docs/recipes.md lists the files and their sources.",
            )
