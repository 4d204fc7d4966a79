"""Modules of a standard library that lies in a folder which only root may enter, as ~/.local does in many containers.

A child that is no longer root cannot name its files from the root of the file system. It can from its own working
folder, which it keeps: the paths here are relative to the folder of the compiled modules.
"""

from __future__ import annotations

import os
import stat
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from typing import Any

from . import layout


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
    """Finds modules from the working folder; asked after all others have failed."""

    def __init__(self, folder: str) -> None:
        self._library = os.path.relpath(layout.home(), folder)

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
