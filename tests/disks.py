"""A small file system of one's own, to be filled for real."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def on_a_small_disk(
    code: str, folder: Path, *arguments: str, size: str = "2m", patience: float = 0.0
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process for which `folder` (sys.argv[1]) is a disk of that size."""
    if not shutil.which("unshare") or subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("this system lets nobody mount a small file system of his own")
    folder.mkdir(parents=True, exist_ok=True)
    mount = f'mount -t tmpfs -o size={size} tmpfs {folder} && export POSTTRAIN_DISK_PATIENCE={patience} && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    return subprocess.run(
        [*command, sys.executable, "-c", code, str(folder), *arguments], capture_output=True, text=True, timeout=300
    )


FILL = """
import os
def fill(folder, leave=0):
    '''Leave about so many bytes free.'''
    with open(os.path.join(folder, "filler"), "wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, os.statvfs(folder).f_bavail * os.statvfs(folder).f_bsize - leave))
"""
