"""The limits that control groups (versions 1 and 2) set for this process, such as a container's share of the
processors.

Without torch, so that it can be asked before anything is loaded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

CONTROL_GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def cores(groups: Path = CONTROL_GROUPS, own: Path = OWN_GROUPS) -> int:
    """Processor cores that this process can keep busy, at least one: those it may run on, and no more than its quota.

    A quota of 2.5 is two cores: a third thread would stop all of them for half of the time.
    """
    may_use = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [quota for folder, version in _folders("cpu", groups, own) if (quota := _quota(folder, version))]
    return max(1, min([may_use, *map(int, quotas)]))


def memory_left(groups: Path = CONTROL_GROUPS, own: Path = OWN_GROUPS) -> Iterator[int]:
    """Bytes that each control group with a limit leaves this process."""
    for folder, version in _folders("memory", groups, own):
        if (left := _left(folder, version)) is not None:
            yield left


def _folders(controller: str, groups: Path, own: Path) -> Iterator[tuple[Path, int]]:
    """The folder of each group that this process is in, the innermost first, and the version that it has."""
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
    """Cores that a group may use on average; None where there is no limit, or nothing to read."""
    try:
        if version == 2:
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        share = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max" is no number: no limit
        return None
    return share if share > 0 else None  # version 1 says -1 where there is none


def _left(folder: Path, version: int) -> int | None:
    """None where there is no limit, or nothing to read.

    The file cache of a group is given back when it is needed: weights that were read twice, too, which are in its
    active part. In version 1 `total_` counts the groups below, as the usage does.
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
