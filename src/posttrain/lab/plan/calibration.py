"""What a probe has measured on this machine, kept for the plans that are made on it later.

A file in the cache folder, one entry for each processor or GPU. An entry replaces the peaks of the table and the
assumed shares; a file that cannot be read counts as none.
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from posttrain.cache import cache_folder
from posttrain.control_groups import cores
from posttrain.files import write_durably
from posttrain.lab.plan.hardware import Hardware, processor_facts
from posttrain.lab.plan.records import MemoryPlan, Phase

EXACT = ("weights", "adapters", "gradients", "optimizer state", "copy of the weights")
"""Kinds of memory whose bytes are known; a probe corrects the others."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Measured on one machine, with random weights."""

    machine: str
    date: str
    what: str
    """What was run."""
    float32: float
    """Operations per second of matrix products."""
    bfloat16: float | None
    bandwidth: float
    """Bytes per second of copying in memory."""
    compute: float
    """Share of `float32` or `bfloat16` that training reached."""
    layer_call: float
    """Seconds of a layer's forward pass that no work hides."""
    memory: float
    """Measured over predicted bytes, of what is not exactly known."""


def apply_to(hardware: Hardware, found: Calibration) -> Hardware:
    """The hardware as it was measured."""
    device = replace(hardware.device, float32=found.float32, bfloat16=found.bfloat16, bandwidth=found.bandwidth)
    shares = replace(
        hardware.efficiency,
        compute=found.compute,
        bandwidth=1.0,
        layer_call=found.layer_call,
        source=f"measured on {found.date} with {found.what}",
    )
    return replace(hardware, device=device, efficiency=shares, memory_factor=found.memory)


def corrected(memory: MemoryPlan, factor: float) -> int:
    """Bytes of the largest phase on the devices that train, what is not exactly known times `factor`."""

    def of(phase: Phase) -> float:
        return sum(part.bytes * (1 if part.what in EXACT else factor) for part in phase.parts)

    return round(max(of(phase) for phase in memory.phases if phase.place == "trainer"))


def saved(machine: str) -> Calibration | None:
    """What was measured on it before."""
    told = _entries().get(machine)
    try:
        return None if told is None else Calibration(**told)
    except TypeError:  # of another version
        return None


def save(found: Calibration) -> Path:
    """Keep it, in place of an older one of the same machine; returns the file."""
    file = _file()
    file.parent.mkdir(parents=True, exist_ok=True)
    write_durably(file, json.dumps({**_entries(), found.machine: asdict(found)}, indent=1) + "\n")
    return file


def _file() -> Path:
    return cache_folder("plan") / "calibration.json"


def _entries() -> Mapping[str, Any]:
    try:
        told = json.loads(_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, Mapping) else {}


@functools.cache
def processor() -> str:
    """This processor by its name, what it can do, and how many cores a run may use."""
    told = processor_facts()
    flags = hashlib.sha256(told.get("flags", "").encode()).hexdigest()[:8]
    name = told.get("model name") or platform.processor() or platform.machine()
    return f"{name} (instructions {flags}), {cores()} cores"
