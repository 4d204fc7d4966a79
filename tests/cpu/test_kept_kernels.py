"""oneDNN's kernels for shapes that do not recur are freed again."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.processes import run_code

from posttrain.cpu import onednn

GROWTH = """
import psutil, torch
from posttrain.cpu.onednn import onednn_products

def after(shapes):
    with onednn_products():
        for n in shapes:
            torch.bmm(torch.ones(3, n, 32), torch.ones(3, 32, n))
    return psutil.Process().memory_info().rss

first = after(range(64, 664))
print((after(range(664, 964)) - first) // 2**20)
"""


@pytest.mark.slow
@pytest.mark.skipif(not onednn.available() or sys.platform != "linux", reason="PyTorch without oneDNN")
def test_memory_does_not_grow_with_the_shapes_of_products():
    """300 more shapes, each with its larger matrices; if all kernels were kept, memory would grow by 200 MB."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_CACHE_CAPACITY")}
    told = subprocess.run([sys.executable, "-c", GROWTH], env=environment, capture_output=True, text=True, check=True)
    assert int(told.stdout) < 150


def test_who_sets_the_number_of_kept_kernels_is_obeyed():
    code = """if True:
        import os, sys
        os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = "7"
        assert "posttrain.cpu.onednn" not in sys.modules
        import posttrain.cpu.onednn
        assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "7"
    """
    ended = run_code(code)
    assert ended.exit_code == 0, ended.errors
