"""Packages with plugins: one that is really installed, and others that are written for a test."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "acme-rl"


@pytest.fixture(scope="session")
def acme(tmp_path_factory) -> Path:
    """A folder into which pip has installed the package of tests/plugins/acme-rl."""
    place = tmp_path_factory.mktemp("acme")
    shutil.copytree(SOURCE, place / "source")
    quiet = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-build-isolation", "--no-deps"]
    command = [sys.executable, "-m", "pip", "install", *quiet, "--target", str(place / "installed"), "."]
    subprocess.run(command, cwd=place / "source", check=True, capture_output=True)
    return place / "installed"


@pytest.fixture
def publish(tmp_path, monkeypatch) -> Callable[..., None]:
    """A function that installs a package of one module, given its plugins as `{group: {name: attribute}}` and its
    text."""

    def installed(name: str, points: dict[str, dict[str, str]], code: str) -> None:
        place = tmp_path / name
        about = place / f"{name}-2.0.dist-info"
        about.mkdir(parents=True)
        (place / f"{name}.py").write_text(code)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.0\n")
        lines = [f"[posttrain.{group}]\n" + "".join(f"{key} = {name}:{attribute}\n" for key, attribute in all_.items())
                 for group, all_ in points.items()]  # fmt: skip
        (about / "entry_points.txt").write_text("\n".join(lines))
        monkeypatch.syspath_prepend(place)

    return installed
