"""Which files an interpreter needs: asked of the interpreter that is asked for, so that both sides can tell."""

from __future__ import annotations

import os
import sys
from glob import glob

DEVICES = ("/dev/null", "/dev/urandom", "/dev/random", "/dev/zero")
INSTALLED = ("site-packages", "dist-packages")
"""Folders of the standard library's home with what was installed beside it; programs do without."""


def home() -> str:
    """The folder of the standard library."""
    return os.path.dirname(os.path.realpath(os.__file__))


def standard_library() -> list[str]:
    """All parts of it, and the folder of its compiled modules where that lies elsewhere."""
    parts = [os.path.join(home(), name) for name in os.listdir(home()) if name not in INSTALLED]
    return parts + [path for path in sys.path if path.endswith("lib-dynload") and not path.startswith(home())]


def shared_libraries() -> list[str]:
    """Where the dynamic linker looks, what the interpreter itself links to, and the time zones."""
    folders = ["/lib64", "/usr/lib64", *glob("/lib/*-linux-*"), *glob("/usr/lib/*-linux-*")]
    files = [*glob("/lib/*.so*"), *glob("/usr/lib/*.so*"), *glob(f"{sys.base_prefix}/lib/*.so*")]
    named = [*folders, *files, "/etc/ld.so.cache", "/usr/share/zoneinfo"]
    return sorted({os.path.realpath(path) for path in named if os.path.exists(path)})
