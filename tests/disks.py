"""A small private file system that a test can really fill."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.processes import Ended, execute, run_alone

from posttrain.files import PATIENCE

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000


def on_a_small_disk(code: str, folder: Path, *arguments: str, size: str = "2m", patience: float = 0.0) -> Ended:
    """Run Python code in a process for which `folder` (sys.argv[1]) is a disk of the given size."""
    if not shutil.which("unshare") or subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("this system lets nobody mount a small file system of his own")
    folder.mkdir(parents=True, exist_ok=True)
    return run_alone(_with_a_disk, size, str(patience), code, str(folder), *arguments, seconds=300)


def _with_a_disk(size: str, patience: str, code: str, folder: str, *arguments: str) -> None:
    user, group = os.getuid(), os.getgid()
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER | CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        Path("/proc/self", name).write_text(text)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    PATIENCE.seconds = float(patience)
    execute(code, folder, *arguments)


FILL = """
import os
def fill(folder, leave=0):
    '''Leave about so many bytes free.'''
    with open(os.path.join(folder, "filler"), "wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, os.statvfs(folder).f_bavail * os.statvfs(folder).f_bsize - leave))
"""
