"""The limits that control groups (versions 1 and 2) set for this process, such as a container's CPU quota.

This file does not import torch, so that it can be used before anything is loaded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

CONTROL_GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def cores(groups: Path = CONTROL_GROUPS, own: Path = OWN_GROUPS) -> int:
    """Number of CPU cores that this process can keep busy, at least 1: those it may run on, limited by its quota.

    A quota of 2.5 counts as two cores: with a third thread, all of them would be stopped for half of the time.
    """
    may_use = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [quota for folder, version in _folders("cpu", groups, own) if (quota := _quota(folder, version))]
    return max(1, min([may_use, *map(int, quotas)]))


def memory_left(groups: Path = CONTROL_GROUPS, own: Path = OWN_GROUPS) -> Iterator[int]:
    """Bytes of memory that are left to this process in each control group that has a limit."""
    for folder, version in _folders("memory", groups, own):
        if (left := _left(folder, version)) is not None:
            yield left


def _folders(controller: str, groups: Path, own: Path) -> Iterator[tuple[Path, int]]:
    """The folder and the version of each control group that contains this process, innermost first."""
    try:
        lines = own.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        names = (controller, controllers)  # controllers that are mounted together seldom lack the short name
        mounted = next((groups / name for name in names if (groups / name).is_dir()), groups / controller)
        root, version = (mounted, 1) if controllers else (groups, 2)
        below = root / path.lstrip("/")
        for folder in (below, *below.parents):
            if folder == root.parent:
                break
            yield folder, version


def _quota(folder: Path, version: int) -> float | None:
    """Cores that a group may use on average; None if there is no limit or nothing to read."""
    try:
        if version == 2:
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        share = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max" is no number: no limit
        return None
    return share if share > 0 else None  # version 1 writes -1 for no limit


def _left(folder: Path, version: int) -> int | None:
    """Bytes of memory that a group has left; None if there is no limit or nothing to read.

    The file cache counts as free, because the kernel reclaims it on demand. That includes its active part, which holds
    weights that were read twice. In version 1 the `total_` figures include the groups below, as the usage does.
    """
    limit_name, usage_name = (
        ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    try:
        limit, usage = int((folder / limit_name).read_text()), int((folder / usage_name).read_text())
        told = dict(re.findall(r"(?m)^(\w+) (\d+)$", (folder / "memory.stat").read_text()))
    except (OSError, ValueError):  # "max" is no number: no limit
        return None
    cache = sum(int(told.get(f"total_{part}", told.get(part, 0))) for part in ("inactive_file", "active_file"))
    return max(0, limit - usage + cache)
