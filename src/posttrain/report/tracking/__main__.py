"""`python -m posttrain.report.tracking FOLDER TRACKER`: follows until standard input ends, as a run starts it."""

from __future__ import annotations

import select
import sys
from pathlib import Path

from posttrain.report.tracking.follow import follow

SECONDS = 2.0


def _ended() -> bool:
    """Whoever has started this holds the other end: it closes when the run is over, however it has ended."""
    return bool(select.select([sys.stdin], [], [], SECONDS)[0])


if __name__ == "__main__":
    follow(Path(sys.argv[1]), sys.argv[2], _ended)
