"""Is this environment one that posttrain was tested in? Versions, processor, memory, disk, sandboxed cache folders."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import psutil
from packaging.requirements import Requirement
from packaging.version import Version

Level = Literal["OK", "WARN", "FAIL"]

TESTED = {
    "torch": "2.13.0",
    "transformers": "5.23.0",
    "peft": "0.21.2",
    "safetensors": "0.8.0",
    "datasets": "5.2.0",
    "pyarrow": "26.0.1",
    "pydantic": "2.14.3",
    "math-verify": "0.9.0",
}
"""The versions of constraints.txt, which the test-suite runs with; a test compares the two."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    level: Level
    what: str
    found: str
    fix: str = ""


@dataclass(frozen=True, kw_only=True)
class EnvironmentReport:
    findings: tuple[Finding, ...]

    @property
    def usable(self) -> bool:
        return all(finding.level != "FAIL" for finding in self.findings)

    def to_json(self) -> dict:
        return {"usable": self.usable, "findings": [asdict(finding) for finding in self.findings]}

    def render(self) -> str:
        lines = [f"{f.level:4}  {f.what:14} {f.found}" + (f"\n      {f.fix}" if f.fix else "") for f in self.findings]
        return "\n".join([*lines, "", "Ready." if self.usable else "Not usable: mend the lines marked FAIL."])


def check_environment() -> EnvironmentReport:
    """Look at the interpreter, the installed versions, the machine and the folders that a run writes to."""
    return EnvironmentReport(findings=(_python(), *map(_package, TESTED), _accelerator(), _memory(), _disk(Path.cwd())))


def _python() -> Finding:
    found = platform.python_version()
    if sys.version_info >= (3, 11):
        return Finding(level="OK", what="python", found=found)
    return Finding(level="FAIL", what="python", found=found, fix="posttrain needs Python 3.11 or newer.")


def _package(name: str) -> Finding:
    allowed = next((r.specifier for r in _requirements() if r.name == name), None)
    try:
        found = Version(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(level="FAIL", what=name, found="missing", fix=f"pip install '{name}=={TESTED[name]}'")
    fix = f"pip install '{name}=={TESTED[name]}'"
    if allowed is not None and not allowed.contains(found, prereleases=True):
        return Finding(level="FAIL", what=name, found=f"{found}, needs {allowed}", fix=fix)
    if found.public != TESTED[name]:
        return Finding(level="WARN", what=name, found=f"{found}, tested with {TESTED[name]}", fix=fix)
    return Finding(level="OK", what=name, found=str(found))


def _requirements() -> list[Requirement]:
    try:
        return [Requirement(line) for line in importlib.metadata.requires("posttrain") or []]
    except importlib.metadata.PackageNotFoundError:
        return []


def _accelerator() -> Finding:
    try:
        import torch
    except ImportError as error:
        return Finding(level="FAIL", what="accelerator", found=f"torch cannot be imported: {error}")
    if torch.cuda.is_available():
        card = torch.cuda.get_device_properties(0)
        return Finding(level="OK", what="accelerator", found=f"{card.name}, {card.total_memory / 2**30:.0f} GiB")
    return Finding(level="OK", what="accelerator", found=f"none: CPU with {os.cpu_count()} cores, float32")


def _memory() -> Finding:
    available = psutil.virtual_memory().available / 2**30
    if available >= 2:
        return Finding(level="OK", what="memory", found=f"{available:.1f} GiB available")
    return Finding(level="WARN", what="memory", found=f"{available:.1f} GiB available", fix="The demo needs about 1 GiB.")


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free / 2**30
    try:
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Finding(
            level="WARN", what="disk", found=f"{folder} is not writable: {error}", fix="Set output to another folder."
        )
    if free < 1:
        return Finding(level="WARN", what="disk", found=f"{free:.1f} GiB free", fix="Free space, or set output.")
    return Finding(level="OK", what="disk", found=f"{free:.1f} GiB free")
