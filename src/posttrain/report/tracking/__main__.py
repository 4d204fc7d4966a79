"""`python -m posttrain.report.tracking FOLDER TRACKER`: follow until standard input ends. A run starts this command."""

from __future__ import annotations

import select
import sys
from pathlib import Path

from posttrain.report.tracking.follow import follow

SECONDS = 2.0


def _ended() -> bool:
    """Wait, and return true if stdin is closed. The run holds the other end, which closes when the run ends or dies."""
    return bool(select.select([sys.stdin], [], [], SECONDS)[0])


if __name__ == "__main__":
    follow(Path(sys.argv[1]), sys.argv[2], _ended)
