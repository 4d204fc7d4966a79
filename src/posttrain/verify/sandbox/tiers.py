"""The tiers of the sandbox: how each starts its fork-server, and which rights the children give up."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from posttrain.errors import SandboxUnavailable
from posttrain.verify.sandbox.forkserver import Command
from posttrain.verify.sandbox.inside import layout

INSIDE = Path(__file__).resolve().parent / "inside"
FLAGS = ("-s", "-S", "-P", "-B", "-X", "utf8")
"""Interpreter flags: no site-packages, and no folder of a script or user. `-I` would also ignore the hash seed."""
START = """
import sys
folder, given = sys.argv[1:]
sys.path.insert(0, folder)
from inside.server import main
sys.path.remove(folder)
main(given)
"""
"""The interpreter's program. It imports the package `inside` without its parents and their imports."""
CONFINED: dict[str, Any] = {"seccomp": True, "landlock": "required"}
USERS = (30_000, 59_999)
"""Range of user ids that distributions do not assign."""


@dataclass(frozen=True, kw_only=True)
class Tier:
    name: str
    command: Callable[[int], Command]
    """Function that returns the command for fork-server `number`."""
    uses: tuple[str, ...] = ()
    """Programs that the tier needs in addition to the interpreter. A change to one of them requires a new self-test."""


def landlock() -> Tier:
    """Landlock and seccomp in each child; for root, also a separate user. Needs no program and no privilege."""

    def command(number: int) -> Command:
        return Command(line=_python(), setup={**CONFINED, "user": unused_user(number)})

    return Tier(name="landlock", command=command)


def bubblewrap() -> Tier:
    """Namespaces that contain only Python, around a fork-server whose children are confined as well."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxUnavailable(given="the program bwrap is not installed")

    def command(number: int) -> Command:
        line = [bwrap, *_namespaces(), *_file_system(), "--", *_python()]
        setup = {**CONFINED, "landlock": "optional", "user": unused_user(number)}
        return Command(line=line, setup=setup)

    return Tier(name="bubblewrap", command=command, uses=(bwrap,))


def container(image: str) -> Tier:
    """A container from an image with python3 (3.11 or later). The fork-server's children are confined as well."""
    client = shutil.which("docker") or shutil.which("podman")
    if client is None:
        raise SandboxUnavailable(given="neither docker nor podman is installed")
    return Tier(name=f"container:{image}", command=partial(_container, client, image), uses=(client,))


def unsafe() -> Tier:
    """Limits on time and memory only: the program has all rights of this user."""
    setup = {"seccomp": False, "landlock": "off", "user": None}
    return Tier(name="unsafe", command=lambda number: Command(line=_python(), setup=setup))


def unused_user(number: int) -> int | None:
    """For root, a user id under which no program of this or another trainer runs. Other users get None."""
    if os.getuid() != 0:
        return None
    first, last = USERS
    return first + (os.getpid() * 61 + number) % (last - first + 1)


def _python() -> list[str]:
    interpreter = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    return [interpreter, *FLAGS, "-c", START, str(INSIDE.parent)]


def _namespaces() -> list[str]:
    """The bwrap options for namespaces and capabilities.

    --die-with-parent is not used: it follows the thread that started us. The fork-server watches the process instead.
    Root keeps its user namespace, in which the children become users that own nothing. Other users get a new one, and
    --disable-userns forbids further ones.
    """
    unshare = [f"--unshare-{kind}" for kind in ("ipc", "pid", "net", "uts", "cgroup-try")]
    if os.getuid() == 0:
        kept = ["CAP_SETUID", "CAP_SETGID", "CAP_KILL"]
        capabilities = ["--cap-drop", "ALL", *(word for name in kept for word in ("--cap-add", name))]
    else:
        capabilities = ["--unshare-user", "--disable-userns", "--cap-drop", "ALL"]
    return [*unshare, *capabilities, "--new-session"]


def _file_system() -> list[str]:
    """The bwrap options for the file system: Python, its libraries and four devices, read-only. No /proc, and no
    writable tmpfs."""
    links = [("--symlink", os.readlink(path), path) for path in ("/lib", "/lib64") if os.path.islink(path)]
    home = layout.home()
    parts = [_python()[0], home, *layout.standard_library(), *layout.shared_libraries(), str(INSIDE)]
    outside = [part for part in parts if part == home or not part.startswith(f"{home}/")]
    binds = [("--ro-bind", part, part) for part in sorted(set(outside))]
    above = {str(folder) for part in (*outside, *layout.DEVICES) for folder in Path(part).parents} - {"/"}
    folders = [("--perms", "0755", "--dir", folder) for folder in sorted(above)]  # root would get 0700
    devices = [("--dev-bind", device, device) for device in layout.DEVICES if os.path.exists(device)]
    hidden = [folder for name in layout.INSTALLED if os.path.isdir(folder := os.path.join(home, name))]
    covers = [(flag, folder) for folder in hidden for flag in ("--tmpfs", "--remount-ro")]
    words = [*folders, *links, *binds, *devices, *covers, ("--remount-ro", "/"), ("--chdir", "/")]
    return [word for group in words for word in group]


def _container(client: str, image: str, number: int) -> Command:
    """The command for a container. It connects to a socket in a shared folder, because pipes pass no descriptors."""
    owner = unused_user(number) or os.getuid()
    name = f"posttrain-{os.getpid()}-{number}-{os.urandom(4).hex()}"
    line = [
        *(client, "run", "--rm", "--name", name, "--network", "none", "--read-only", "--cap-drop", "ALL"),
        *("--security-opt", "no-new-privileges", "--pids-limit", "128", "--ipc", "none"),
        *("--user", f"{owner}:{owner}", "--env", "PYTHONHASHSEED=0"),
        *("--volume", f"{INSIDE}:/posttrain/inside:ro", "--volume", "{meeting}:/run/posttrain"),
        *("--entrypoint", "python3", image, *FLAGS, "-c", START, "/posttrain"),
    ]
    setup = {**CONFINED, "landlock": "optional", "user": None}
    return Command(line=line, setup=setup, meeting="/run/posttrain", on_close=[client, "rm", "--force", name])
