"""`train.cpu_offload` on the stand-in for a CUDA device: tensors in main memory, and the remaining work of the
device."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.tiny import tiny_model

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None or torch.version.cuda is not None,
    reason="the stand-in is compiled, and takes the place of CUDA in a build of PyTorch that has none",
)


@pytest.mark.slow
def test_parts_lie_in_main_memory_and_passes_run_on_the_device_in_its_precision(tmp_path: Path) -> None:
    tiny_model(tmp_path / "llama", num_hidden_layers=2)
    command = [sys.executable, "-m", "tests.gpu.offloading", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert {name: found[name] for name in ("weights", "gradients", "moments")} == {
        "weights": ["cpu"],
        "gradients": ["cpu"],
        "moments": ["cpu"],
    }
    assert found["outputs"] == found["whole"] == "cuda"
    assert found["products"] > 0, "on the device"
    assert found["casts"] > 0, "autocast follows the device that computes, not the place of the weights"
    assert found["copied"]["to host"] == found["bytes"], "each gradient once"
    assert 2 * found["bytes"] <= found["copied"]["to device"] < 3 * found["bytes"], "weights forward and backward"
