"""C++ compiled for this machine's processor, when it is first needed, and kept for every later start."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from posttrain.cache import cache_folder
from posttrain.models.processor import machine

COMPILERS = ("g++", "clang++")
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fopenmp", "-std=c++17", "-shared", "-fPIC")
"""`-march=native`: a library is for processors with the instructions of this one, which is part of its name. `-fopenmp`
takes the threads of the OpenMP that PyTorch has brought into the process."""
MOST_SECONDS = 120


class Unavailable(Exception):
    """Why there is no library, in one sentence."""


def compiled(source: Path) -> Path:
    """The shared library of one C++ file, in the cache folder. Takes seconds where there is none yet.

    Processes may ask at once: each puts a whole library in place. Raises Unavailable.
    """
    content = hashlib.sha256(" ".join([*FLAGS, machine()]).encode() + source.read_bytes())
    library = cache_folder("compiled") / f"{source.stem}-{content.hexdigest()[:16]}.so"
    if library.is_file():
        return library
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            made = Path(folder) / library.name
            _compile(source, made)
            os.replace(made, library)
    except OSError as error:
        raise Unavailable(f"{library.parent} cannot be written to ({error.strerror})") from error
    return library


def _compile(source: Path, target: Path) -> None:
    compiler = _compiler()
    command = [compiler, *FLAGS, str(source), "-o", str(target)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{compiler} took more than {MOST_SECONDS} seconds") from error
    if done.returncode or not target.is_file():
        said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[-200:])
        raise Unavailable(f"{compiler} failed with exit code {done.returncode} ({said})")


def _compiler() -> str:
    asked = os.environ.get("CXX")
    for name in [asked] if asked else COMPILERS:
        if found := shutil.which(name):
            return found
    raise Unavailable(f"no C++ compiler was found ({asked or ' or '.join(COMPILERS)})")
