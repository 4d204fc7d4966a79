"""Run the planner's probe on this GPU: `python -m benchmarks.gpu.calibration MODEL DEVICE [FILE]`.

The probe saves its result for this machine. FILE is the package's file of GPUs that users can name (`posttrain plan
--gpus h100`); an entry of the same GPU is replaced there.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from posttrain.config import load_config
from posttrain.lab.plan.probe import probe_and_plan


def calibrate(model: str, device: str) -> dict[str, Any]:
    """The calibration, and for the probe's step the predicted and the measured times."""
    config = {
        "model": {"path": model, "device": device},
        "algorithm": "grpo",
        "data": {"train": "task:sort"},
        "rewards": [{"name": "exact_match"}],
        "train": {"steps": 1},
    }
    found = probe_and_plan(load_config(config).config)
    return {
        "calibration": asdict(found.calibration),
        "predicted": dict(found.predicted),
        "measured": dict(found.measured),
    }


def put_into(file: Path, calibration: dict[str, Any]) -> None:
    """Put a calibration into a file, in place of an older one of the same GPU."""
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(known | {calibration["machine"]: calibration}, indent=1) + "\n")


if __name__ == "__main__":
    told = calibrate(*sys.argv[1:3])
    for name in sys.argv[3:]:
        put_into(Path(name), told["calibration"])
    print(json.dumps(told))
