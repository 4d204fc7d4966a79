"""A machine without a card gets one line that says what is missing, before anything is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from benchmarks.gpu.card import Card, Missing, first_card, index_for_driver, require_torch, used_bytes
from benchmarks.gpu.memory import OfCard
from tests.gpu.devices import NO_CARD

ROOT = Path(__file__).parents[2]


def driver(folder: Path, script: str) -> str:
    """A folder for PATH whose nvidia-smi is this script."""
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "nvidia-smi").chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_the_first_card_of_two(tmp_path, monkeypatch):
    lines = "echo 'NVIDIA H100 80GB HBM3, 580.159.04, 81559'; echo 'NVIDIA L4, 580.159.04, 23034'"
    monkeypatch.setenv("PATH", driver(tmp_path, lines))
    assert first_card() == Card(name="NVIDIA H100 80GB HBM3", driver="580.159.04", memory_mib=81559)


def test_what_all_processes_have_of_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", driver(tmp_path, "echo 4096; echo 12"))
    assert used_bytes() == 4 * 2**30


def test_no_driver(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Missing, match="no NVIDIA driver: nvidia-smi is not on the PATH"):
        first_card()


@pytest.mark.parametrize("script", ["echo 'No devices were found'", "echo 'No devices were found' >&2; exit 6"])
def test_a_driver_without_a_card(tmp_path, monkeypatch, script):
    monkeypatch.setenv("PATH", driver(tmp_path, script))
    with pytest.raises(Missing, match="nvidia-smi says: No devices were found"):
        first_card()


@pytest.mark.slow
@pytest.mark.skipif(torch.version.cuda is not None, reason="torch is a build with CUDA")
def test_a_torch_without_cuda():
    with pytest.raises(Missing, match=r"is a build without CUDA; name an index with another: make TORCH_INDEX="):
        require_torch(sys.executable)


@pytest.mark.parametrize(
    ("line", "index"),
    [
        ("| NVIDIA-SMI 550.54   Driver Version: 550.54   CUDA Version: 12.4 |", "cu126"),
        ("| NVIDIA-SMI 570.86   Driver Version: 570.86   CUDA Version: 12.8 |", "cu126"),
        ("| NVIDIA-SMI 580.95   Driver Version: 580.95   CUDA Version: 13.0 |", "cu130"),
        ("| NVIDIA-SMI 595.58   KMD Version: 595.58   CUDA UMD Version: 13.2 |", "cu130"),
        ("| NVIDIA-SMI |", "cu126"),
    ],
)
def test_the_index_that_fits_the_driver(tmp_path, monkeypatch, line, index):
    monkeypatch.setenv("PATH", driver(tmp_path, f"echo '{line}'"))
    assert index_for_driver() == f"https://download.pytorch.org/whl/{index}"


def test_a_driver_that_runs_no_torch_of_these(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", driver(tmp_path, "echo 'Driver Version: 470.57   CUDA Version: 11.4'"))
    with pytest.raises(Missing, match=r"the driver runs CUDA 11.4 at most, and torch is built for 12.6: update it"):
        index_for_driver()


def test_another_index_is_another_installation(tmp_path):
    """The test asks make for its commands, given an earlier installation, and runs none of them."""
    path = driver(tmp_path, "echo 'NVIDIA L4, 580.159.04, 23034'")
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv/installed-dev-pypi").touch()

    def planned(*settings: str) -> str:
        command = ["make", "-n", "--no-print-directory", "test-gpu", f"GPU_VENV={tmp_path / 'venv'}", *settings]
        environment = os.environ | {"PATH": path}
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout

    assert "-m venv" not in planned()
    for index in ("https://download.pytorch.org/whl/cu126", "https://download.pytorch.org/whl/cu126/"):
        wanted = planned(f"TORCH_INDEX={index}")
        assert f"-m venv --clear {tmp_path / 'venv'}" in wanted
        assert f"--index-url {index} " in wanted
        assert f"touch {tmp_path / 'venv'}/installed-dev-cu126" in wanted
        [extras] = re.findall(r'-e "\.\[(.*)\]"', wanted)
        assert (
            set(extras.split(","))
            <= tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
        )


@pytest.mark.parametrize("target", ["test-gpu", "bench-gpu"])
def test_make_says_so_before_it_installs_anything(tmp_path, target):
    """The driver sees no card; no file is added to the repository's."""
    path = driver(tmp_path, "echo 'No devices were found'; exit 6")
    before = set(ROOT.iterdir())
    command = ["make", "--no-print-directory", target, f"PYTHON={sys.executable}"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "no card: the driver is installed, and nvidia-smi says: No devices were found"
    assert set(ROOT.iterdir()) == before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason=NO_CARD)
def test_memory_of_a_step_on_a_card():
    memory = OfCard()
    torch.zeros(2**20, device="cuda")
    memory.settle()
    memory.forget()
    before = memory.peaks()
    kept = torch.zeros(2**28, device="cuda")
    after = memory.peaks()
    assert after["peak_bytes"] - before["peak_bytes"] == kept.nbytes
    assert after["card_bytes"] >= after["kept_bytes"] >= after["peak_bytes"]
    del kept
    memory.forget()
    assert memory.peaks()["peak_bytes"] == before["peak_bytes"]
