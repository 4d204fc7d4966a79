"""One side in a process of its own: `python -m benchmarks.speed.worker '{"side": ..., "task": ..., ...}'`."""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from pathlib import Path

from benchmarks.speed.gate import Gate


def main() -> None:
    job = json.loads(sys.argv[1])
    gate = Gate(varying=job["varying"])
    try:
        side = importlib.import_module(f"benchmarks.speed.sides.{job['side']}")
        getattr(side, job["task"])(Path(job["folder"]), dict(job["settings"]), gate)
    except Exception as error:
        traceback.print_exc()
        gate.failed(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
