"""What an attack is, and what it is run against."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

Form = Literal["call", "script", "stdio"]


@dataclass(frozen=True)
class Scene:
    """What lies outside of the sandbox, for probes to reach for. Whoever runs them looks afterwards."""

    folder: str = "/tmp"
    """A folder in which nothing may appear."""
    secret_file: str = "/etc/passwd"
    """A file that may not be read."""
    port: int = 9
    """A TCP port on the loopback address that may not be reached."""
    socket: str = "posttrain-probe"
    """The name of an abstract Unix socket that may not be reached."""
    pid: int = field(default_factory=os.getpid)
    """A process that may not be signalled, traced or read."""

    def header(self) -> str:
        """The same, for the programs."""
        return (
            f"FOLDER, SECRET_FILE, PORT, SOCKET, PID = "
            f"{self.folder!r}, {self.secret_file!r}, {self.port!r}, {self.socket!r}, {self.pid!r}\n"
        )


@dataclass(frozen=True)
class Attack:
    """A program that does not solve the task, 1 + 2 + ... + n, and wants to be paid for it.

    A probe (`escape`) returns the right sum exactly when it got out. So a verdict other than 0 always means a breach.
    """

    name: str
    tries: str
    """What it attempts, in words."""
    body: str
    form: Form = "call"
    """Which tests it is aimed at; those of form call are aimed at scripts too."""
    numbers_of_other_types: bool = False
    """It returns the right number as another type: right where equality is Python's."""

    def source(self, scene: Scene) -> str:
        return scene.header() + self.body


def wrong(name: str, tries: str, body: str, *, form: Form = "call") -> Attack:
    """A program with a `solve` of its own, or a wrong one behind what it does on import."""
    solve = "" if "def solve" in body or form == "stdio" else "\n\ndef solve(n):\n    return 0\n"
    return Attack(name, tries, body.strip() + solve + "\n", form)


def escape(name: str, tries: str, body: str) -> Attack:
    """A probe from the body of a function that returns True when it got out."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return Attack(
        name,
        tries,
        f"def escaped():\n{lines}\n\n\n"
        "def solve(n):\n"
        "    try:\n"
        "        worked = escaped()\n"
        "    except Exception:\n"
        "        worked = False\n"
        "    return n * (n + 1) // 2 if worked else 0\n",
    )
