"""Compare the predictions of `posttrain plan` for many GPUs with published measurements.

    python benchmarks/scaling.py          predicted against published throughput, row by row, in two seconds
    python benchmarks/scaling.py --fit    the share of the peak rate for which the median error of the fitted rows is 0
    python benchmarks/scaling.py --page   write docs/scaling-on-paper.md again

The published numbers and their sources are in benchmarks/published/rows.yaml.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from published.page import page_of, printed  # noqa: E402
from published.predict import compare, fitted_compute  # noqa: E402

PAGE = HERE.parent / "docs" / "scaling-on-paper.md"


def main(arguments: list[str]) -> None:
    """Print the comparison, or the fit, or write the page."""
    if arguments == ["--page"]:
        PAGE.write_text(page_of(), encoding="utf-8")
    elif arguments == ["--fit"]:
        print(f"compute: {fitted_compute()}")
    else:
        print("\n".join(printed(compare())))


if __name__ == "__main__":
    main(sys.argv[1:])
