"""The files that an interpreter needs, as it reports them itself, and access to them in folders that only root may
enter.

Only root may enter the folder of some standard libraries, as with ~/.local in many containers. A child that is no
longer root cannot use absolute paths to the files. It can use paths relative to its working folder, which it keeps:
the folder of the compiled modules.
"""

from __future__ import annotations

import os
import stat
import sys
from glob import glob
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from typing import Any

DEVICES = ("/dev/null", "/dev/urandom", "/dev/random", "/dev/zero")
INSTALLED = ("site-packages", "dist-packages")
"""Folders for installed packages in the standard library's folder. Programs do not get them."""


def home() -> str:
    """The folder of the standard library."""
    return os.path.dirname(os.path.realpath(os.__file__))


def standard_library() -> list[str]:
    """All parts of the standard library, and the folder of its compiled modules if that is elsewhere."""
    folder = home()
    parts = [os.path.join(folder, name) for name in os.listdir(folder) if name not in INSTALLED]
    return parts + [path for path in sys.path if path.endswith("lib-dynload") and not path.startswith(folder)]


def shared_libraries() -> list[str]:
    """The folders of the dynamic linker, the libraries of the interpreter itself, and the time zones."""
    folders = ["/lib64", "/usr/lib64", *glob("/lib/*-linux-*"), *glob("/usr/lib/*-linux-*")]
    files = [*glob("/lib/*.so*"), *glob("/usr/lib/*.so*"), *glob(f"{sys.base_prefix}/lib/*.so*")]
    named = [*folders, *files, "/etc/ld.so.cache", "/usr/share/zoneinfo"]
    return sorted({os.path.realpath(path) for path in named if os.path.exists(path)})


def closed_folder() -> str | None:
    """The folder of the compiled modules if other users cannot reach it by name."""
    folder = next((path for path in sys.path if path.endswith("lib-dynload") and os.path.isdir(path)), None)
    above = folder
    while above and above != "/":
        above = os.path.dirname(above)
        if not os.stat(above).st_mode & stat.S_IXOTH:
            return folder
    return None


class RelativeFinder:
    """Finds modules relative to the working folder, after all other finders have failed."""

    def __init__(self, folder: str) -> None:
        self._library = os.path.relpath(home(), folder)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        place = os.path.join(self._library, *name.split("."))
        for file, folders in ((f"{place}/__init__.py", [place]), (f"{place}.py", None)):
            if os.path.isfile(file):
                loader = SourceFileLoader(name, file)
                return spec_from_file_location(name, file, loader=loader, submodule_search_locations=folders)
        for suffix in EXTENSION_SUFFIXES:
            if os.path.isfile(file := f"./{name}{suffix}"):
                return ModuleSpec(name, ExtensionFileLoader(name, file), origin=file)
        return None
