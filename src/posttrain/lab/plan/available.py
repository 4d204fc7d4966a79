"""How much memory and disk a run may use on this machine, without torch: the least of what every limit leaves.

A container may have less than the machine, in a control group of either version; `ulimit -v` bounds a process. What the
kernel would give back (file cache) counts as free. Swap is told apart: a run that needs it fits, and crawls.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from posttrain.control_groups import CONTROL_GROUPS, OWN_GROUPS, memory_left
from posttrain.lab.plan.calibration import apply_to, processor, saved
from posttrain.lab.plan.hardware import Hardware, this_gpu, this_processor


@dataclass(frozen=True, kw_only=True)
class Available:
    """Bytes that a new run may use."""

    memory: int
    swap: int
    limit: str
    """What bounds the memory."""


def available_memory(groups: Path = CONTROL_GROUPS, own: Path = OWN_GROUPS) -> Available:
    """Of main memory: what the machine, its control groups and the limit of this process leave, the least of them."""
    free = psutil.virtual_memory().available
    limits = [(free, "what the machine has free")]
    limits += [(left, "the limit of the control group") for left in memory_left(groups, own)]
    bound, _ = resource.getrlimit(resource.RLIMIT_AS)
    if bound != resource.RLIM_INFINITY:
        limits.append((max(0, bound - psutil.Process().memory_info().vms), "the limit of this process (ulimit -v)"))
    memory, limit = min(limits)
    return Available(memory=memory, swap=psutil.swap_memory().free if memory == free else 0, limit=limit)


def free_disk(folder: Path) -> int:
    """Bytes that are free where this folder is, or would be made."""
    place = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    return shutil.disk_usage(place).free


def this_machine(device: str = "auto") -> Hardware:
    """What a run with `model.device` would use here: the first GPU that the driver reports, else the processor."""
    gpu = None if device == "cpu" else _reported_gpu()
    return gpu_here(*gpu) if gpu is not None else processor_here()


def processor_here() -> Hardware:
    """As a probe has measured it, else as a few milliseconds show it to be."""
    free, found = available_memory(), saved(processor())
    rates = None if found is None else (found.float32, found.bandwidth)
    hardware = replace(this_processor(free.memory, rates), swap=free.swap)
    return hardware if found is None else apply_to(hardware, found)


def gpu_here(name: str, total: int, free: int) -> Hardware:
    """As a probe has measured it, else as the table has it."""
    hardware, found = this_gpu(name, total, free), saved(name)
    return hardware if found is None else apply_to(hardware, found)


def _reported_gpu() -> tuple[str, int, int] | None:
    """(name, bytes, free bytes) of the first GPU as nvidia-smi has it: asking torch would take seconds."""
    command = ["nvidia-smi", "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        name, total, free = next(iter(told.splitlines())).rsplit(", ", 2)
        return name, int(total) * 2**20, int(free) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError, StopIteration):  # no driver, or none that answers
        return None
