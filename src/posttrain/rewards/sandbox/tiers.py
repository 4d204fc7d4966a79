"""How the fork-server is started in each tier."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from glob import glob
from pathlib import Path

from posttrain.rewards.sandbox.forkserver import Command

INSIDE = Path(__file__).parent / "inside"
FLAGS = ("-s", "-S", "-P", "-B", "-X", "utf8")
"""No site-packages, no folder of a script or a user. `-I` would also ignore the hash seed that we give."""
START = """
import sys
folder, given = sys.argv[1:]
sys.path.insert(0, folder)
from inside.server import main
sys.path.remove(folder)
main(given)
"""
"""What the interpreter runs: the part of this package that goes inside, without its parents and what they import."""
USERS = (30_000, 59_999)
"""User ids that no distribution hands out."""


def landlock() -> Callable[[int], Command]:
    interpreter = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    setup = {
        "seccomp": True,
        "landlock": "required",
        "readable": [*standard_library(), *shared_libraries(), *DEVICES],
        "writable": ["/dev/null"],
    }

    def command(number: int) -> Command:
        line = [interpreter, *FLAGS, "-c", START, str(INSIDE.parent)]
        return Command(line=line, setup={**setup, "user": unused_user(number)})

    return command


DEVICES = ("/dev/urandom", "/dev/random", "/dev/zero")


def standard_library() -> list[str]:
    """The parts of the standard library, without the packages that were installed beside it."""
    home = Path(os.__file__).resolve().parent
    return [str(one) for one in home.iterdir() if one.name not in ("site-packages", "dist-packages")]


def shared_libraries() -> list[str]:
    """Where the dynamic linker looks, and the libraries of the interpreter itself."""
    folders = ["/lib64", "/usr/lib64", *glob("/lib/*-linux-*"), *glob("/usr/lib/*-linux-*")]
    files = [*glob("/lib/*.so*"), *glob("/usr/lib/*.so*"), *glob(f"{sys.base_prefix}/lib/*.so*")]
    return [one for one in (*folders, *files, "/etc/ld.so.cache", "/usr/share/zoneinfo") if os.path.exists(one)]


def unused_user(number: int) -> int | None:
    """For root: a user id that nobody has and no process runs as. Others cannot change theirs."""
    if os.getuid() != 0:
        return None
    first, last = USERS
    return first + (os.getpid() * 61 + number) % (last - first + 1)
