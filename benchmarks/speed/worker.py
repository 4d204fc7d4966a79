"""Run one side in its own process: `python -m benchmarks.speed.worker '{"side": ..., "task": ..., ...}'`."""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from pathlib import Path

from benchmarks.speed.gate import Gate, Memory, Resident


def main() -> None:
    job = json.loads(sys.argv[1])
    gate = Gate(varying=job["varying"], memory=_memory(job["device"]))
    try:
        side = importlib.import_module(f"benchmarks.speed.sides.{job['side']}")
        getattr(side, job["task"])(Path(job["folder"]), dict(job["settings"]), gate)
    except Exception as error:
        traceback.print_exc()
        gate.failed(f"{type(error).__name__}: {error}")


def _memory(device: str) -> Memory:
    if device == "cpu":
        return Resident()
    from benchmarks.gpu.memory import OfCard

    return OfCard()


if __name__ == "__main__":
    main()
