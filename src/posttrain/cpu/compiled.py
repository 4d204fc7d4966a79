"""C++ compiled for this machine's processor, when it is first needed, and kept for every later start."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from posttrain.cache import cache_folder
from posttrain.errors import DoesNotFit
from posttrain.files import write_atomically
from posttrain.models.compute import machine

COMPILER = "g++"
"""Where CXX names no other. Its OpenMP is the one that PyTorch has brought into the process, so they share threads."""
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fopenmp", "-std=c++17", "-shared", "-fPIC")
MOST_SECONDS = 120


class Unavailable(Exception):
    """Why there is no library, in one sentence."""


@dataclass(frozen=True)
class Compiler:
    command: tuple[str, ...]
    version: str
    """As it names itself."""


def find_compiler() -> Compiler:
    """That of CXX, which may have arguments, or g++. Raises Unavailable."""
    try:
        command = shlex.split(os.environ.get("CXX", "")) or [COMPILER]
    except ValueError as error:
        raise Unavailable(f"CXX is no command line ({error})") from error
    found = shutil.which(command[0])
    if found is None:
        raise Unavailable(f"no C++ compiler was found ({command[0]})")
    command = (found, *command[1:])
    return Compiler(command, next(iter(_run([*command, "--version"]).splitlines()), ""))


def compiled(source: Path, compiler: Compiler) -> Path:
    """The shared library of one C++ file, in the cache folder. Takes seconds where there is none yet.

    Its name says what it depends on: the source, the compiler, the C library and what the processor can do. One that is
    not as it was written is made anew. Processes may ask at once. Raises Unavailable.
    """
    made_of = [*FLAGS, *compiler.command, compiler.version, *platform.libc_ver(), machine()]
    key = hashlib.sha256("\n".join(made_of).encode() + source.read_bytes()).hexdigest()[:16]
    try:
        library = cache_folder("compiled") / f"{source.stem}-{key}.so"
        digest = library.with_suffix(".sha256")
        if library.is_file() and digest.is_file() and digest.read_text() == _digest(library.read_bytes()):
            return library
        content = _compile(source, compiler)
        write_atomically(library, content)
        write_atomically(digest, _digest(content))
    except (OSError, RuntimeError, DoesNotFit) as error:  # RuntimeError: there is no home folder
        raise Unavailable(f"the cache folder cannot be used ({error})") from error
    return library


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _compile(source: Path, compiler: Compiler) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "library.so"
        _run([*compiler.command, *FLAGS, str(source), "-o", str(target)])
        return target.read_bytes()


def _run(command: list[str]) -> str:
    """What it prints; raises Unavailable where it cannot be run, fails or takes too long."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{name} took more than {MOST_SECONDS} seconds") from error
    except OSError as error:
        raise Unavailable(f"{name} cannot be run ({error.strerror})") from error
    if done.returncode:
        said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[-200:])
        raise Unavailable(f"{name} failed with exit code {done.returncode} ({said})")
    return done.stdout
