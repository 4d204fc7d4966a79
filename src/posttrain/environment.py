"""Check whether posttrain can run here: versions, processor, memory, disk, cache folder, sandbox and plugins."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import Requirement
from packaging.version import Version

from posttrain.control_groups import cores
from posttrain.engine_environment import VERSION, folder, installed
from posttrain.errors import ConfigError
from posttrain.plugins import Kind, all_published

Level = Literal["OK", "WARN", "FAIL"]

TESTED = {
    "torch": "2.13.0",
    "transformers": "5.23.0",
    "peft": "0.21.2",
    "safetensors": "0.8.0",
    "datasets": "5.2.0",
    "pyarrow": "26.0.1",
    "pydantic": "2.14.3",
    "pyyaml": "6.0.3",
    "rich": "15.0.0",
    "typer": "0.29.2",
    "math-verify": "0.9.0",
    "psutil": "7.2.2",
    "numpy": "2.4.6",
    "packaging": "26.3",
    "fsspec": "2026.9.0",
}
"""Dependencies of posttrain -> the versions that its tests have passed with. A test compares both with the files that
declare them."""

DEMO_MEMORY, RUN_DISK = 2.0, 1.0
"""Amounts of free memory and disk below which a line is a warning, in GiB. The demo and its libraries take about 1 GiB
of memory; its run folder takes 0.05 GiB."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check."""

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

    def to_json(self) -> dict[str, Any]:
        return {"usable": self.usable, "findings": [asdict(finding) for finding in self.findings]}

    def render(self) -> str:
        """One line for each finding, with its fix below, and the verdict at the end."""
        lines = [f"{f.level:4}  {f.what:13} {f.found}" + (f"\n      {f.fix}" if f.fix else "") for f in self.findings]
        warned = sum(finding.level == "WARN" for finding in self.findings)
        verdict = "Ready." if self.usable else "Not usable: fix the lines marked FAIL."
        return "\n".join([*lines, "", f"{verdict} {warned} warning{'s' * (warned > 1)}." if warned else verdict])


def check_environment() -> EnvironmentReport:
    """Check the interpreter, the installed versions, the machine and the folders that a run writes to."""
    here = (_imports(), _accelerator(), _memory(), _disk(Path.cwd()), _cache(_cache_folder()), _sandbox())
    found = (_python(), *map(_package, TESTED), *here, _engines())
    plugins = _plugins() if all(finding.level != "FAIL" for finding in found) else ()
    return EnvironmentReport(findings=(*found, *plugins))


def _plugins() -> Iterator[Finding]:
    """Check the extensions of other packages: import each of them once."""
    from posttrain.algorithms import ALGORITHMS
    from posttrain.config.sections import ENGINES
    from posttrain.engines.process import published_engine
    from posttrain.rewards.load import find_named, load
    from posttrain.rewards.verifiers import BUILTINS
    from posttrain.tasks import TASKS, find_task

    tried: dict[Kind, tuple[Collection[str], Callable[[str], object]]] = {
        "algorithm": (ALGORITHMS.places, ALGORITHMS.__getitem__),
        "reward": (BUILTINS, lambda name: load(find_named(name))),
        "task": (TASKS, find_task),
        "engine": (ENGINES, published_engine),
    }
    for plugin in all_published():
        ours, find = tried[plugin.kind]
        told = f"{plugin.name} of {plugin.package}"
        if plugin.name in ours:
            fix = f"posttrain's own {plugin.name} is used. Ask the author of the package for another name."
            yield Finding(level="WARN", what=plugin.kind, found=f"{told} is not used: its name is reserved", fix=fix)
            continue
        try:
            find(plugin.name)
        except ConfigError as error:
            yield Finding(level="WARN", what=plugin.kind, found=error.given, fix=error.fix.partition("\n")[0])
        else:
            yield Finding(level="OK", what=plugin.kind, found=told)


def _engines() -> Finding:
    """Report whether vLLM is installed. Only `rollout.engine: vllm` needs it."""
    if installed():
        return Finding(level="OK", what="engines", found=f"vLLM {VERSION} in {folder()}")
    return Finding(level="OK", what="engines", found="local; vLLM after `posttrain engine install vllm`")


def _python() -> Finding:
    return Finding(level="OK", what="python", found=f"{platform.python_version()} in {sys.prefix}")


def _package(name: str) -> Finding:
    """Check the version of a package: FAIL outside the range in pyproject.toml, WARN inside it but untested."""
    tested, fix = TESTED[name], f"pip install '{name}=={TESTED[name]}'"
    try:
        found = Version(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(level="FAIL", what=name, found="missing", fix=fix)
    allowed = next((r.specifier for r in _requirements() if r.name == name and r.marker is None), None)
    if allowed is not None and not allowed.contains(found, prereleases=True):
        return Finding(level="FAIL", what=name, found=f"{found}, needs {allowed}", fix=fix)
    if found.public != tested:
        return Finding(level="WARN", what=name, found=f"{found}, tested with {tested}", fix=fix)
    return Finding(level="OK", what=name, found=str(found))


def _requirements() -> list[Requirement]:
    """The requirements of the installed posttrain; empty if it runs from source without being installed."""
    try:
        return [Requirement(line) for line in importlib.metadata.requires("posttrain") or []]
    except importlib.metadata.PackageNotFoundError:
        return []


def _imports() -> Finding:
    """Import the large libraries. That reveals versions that are allowed one by one but do not work together."""
    for name in ("torch", "transformers", "peft", "datasets"):
        try:
            importlib.import_module(name)
        except Exception as error:  # whatever the library raises, it cannot be used
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            fix = f"pip install --force-reinstall '{name}=={TESTED[name]}'"
            return Finding(level="FAIL", what="imports", found=f"{name} cannot be imported: {reason}", fix=fix)
    return Finding(level="OK", what="imports", found="torch, transformers, peft and datasets load together")


def _accelerator() -> Finding:
    try:
        import torch
    except (ImportError, OSError):  # the finding `imports` gives the reason
        return Finding(level="FAIL", what="accelerator", found="unknown without torch")
    if torch.cuda.is_available():
        card = torch.cuda.get_device_properties(0)
        precision = "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
        found = f"{card.name}, {card.total_memory / 2**30:.0f} GiB, {precision}"
        return Finding(level="OK", what="accelerator", found=found)
    return Finding(level="OK", what="accelerator", found=f"none: CPU with {cores()} cores, float32")


def _memory() -> Finding:
    try:
        import psutil
    except ImportError:
        return Finding(level="FAIL", what="memory", found="unknown without psutil")
    available = psutil.virtual_memory().available / 2**30
    if available >= DEMO_MEMORY:
        return Finding(level="OK", what="memory", found=f"{available:.1f} GiB available")
    fix = "Close other programs; the demo needs about 1 GiB."
    return Finding(level="WARN", what="memory", found=f"{available:.1f} GiB available", fix=fix)


def _disk(folder: Path) -> Finding:
    """Check the working directory, in which runs/ is made."""
    if reason := _unwritable(folder):
        fix = "Set output to a folder elsewhere, for example --output ~/runs/first."
        return Finding(level="WARN", what="disk", found=f"{folder} is not writable ({reason})", fix=fix)
    free = shutil.disk_usage(folder).free / 2**30
    if free < RUN_DISK:
        fix = "Free some space, or set output to a folder on another disk."
        return Finding(level="WARN", what="disk", found=f"{free:.1f} GiB free in {folder}", fix=fix)
    return Finding(level="OK", what="disk", found=f"{free:.1f} GiB free in {folder}")


def _cache(folder: Path) -> Finding:
    """Check the folder for downloads from the Hugging Face Hub."""
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    if reason := _unwritable(nearest):
        fix = "Set HF_HOME to a folder that you may write to, before anything is downloaded."
        return Finding(level="WARN", what="cache", found=f"{folder} is not writable ({reason})", fix=fix)
    return Finding(level="OK", what="cache", found=str(folder))


def _sandbox() -> Finding:
    """Check the sandbox for programs that a model writes. Only rewards that run code need one."""
    try:
        from posttrain.verify.sandbox import SandboxUnavailable, open_sandbox
    except ImportError as error:  # the finding `imports` gives the reason
        return Finding(level="WARN", what="sandbox", found=f"unknown: {error}")
    try:
        with open_sandbox(size=1) as sandbox:
            return Finding(level="OK", what="sandbox", found=f"{sandbox.tier}: it withstood the attacks")
    except SandboxUnavailable as error:
        return Finding(level="WARN", what="sandbox", found=f"code rewards cannot run: {error.given}", fix=error.fix)


def _cache_folder() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("HF_HOME") or base / "huggingface").expanduser()


def _unwritable(folder: Path) -> str:
    """The reason why no file can be written in a folder; empty if one can."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)
