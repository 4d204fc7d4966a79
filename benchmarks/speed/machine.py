"""Description of the machine on which figures are measured."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile", "sve", "bf16")


def origin() -> dict[str, Any]:
    """The origin of figures that are measured now: day, version of the source, and machine."""
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"date": day, "commit": told.stdout.strip() or "unknown", "machine": description()}


def description() -> dict[str, Any]:
    """The processor, its instructions for matrix products, memory and versions."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "instructions": [flag for flag in _FLAGS if flag in (_field("/proc/cpuinfo", "flags") or "").split()],
        "memory_gb": round(int((_field("/proc/meminfo", "MemTotal") or "0 kB").split()[0]) / 2**20, 1),
        "python": platform.python_version(),
        "torch": torch.__version__.split("+")[0],
        "transformers": version("transformers"),
        "trl": "1.16.0",
        "vllm": "0.32.0",
    }


def _processor() -> str:
    """Name and generation of the processor, because names are as general as "AMD EPYC"."""
    name = _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()
    family, model = (_field("/proc/cpuinfo", field) for field in ("cpu family", "model"))
    return f"{name} (family {family}, model {model})" if family and model else name


def _field(path: str, name: str) -> str | None:
    """The first value with this name in a file; None on systems without such files."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.split(":")[0].strip() == name), None)
