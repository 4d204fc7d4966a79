"""Programs that want to be paid without solving the task: what a grader of code has to withstand.

The task is `solve(n)` = 1 + 2 + ... + n. No program of `attacks.yaml` solves it; probes return the sum when they got
out of the sandbox. Whoever gives one of them more than 0 has been fooled. They come from published cases: Baker et al.
(arXiv:2503.11926), Anthropic (arXiv:2511.18397), METR (June 2025), ImpossibleBench (arXiv:2510.20270) and Berkeley's
BenchJack (2026).

    for attack in ATTACKS:
        for tests in tests_for(attack):
            assert code(fenced(attack.source(Scene())), **tests) == 0

Many of them do what they say: run them only in a sandbox, and never as they are.
"""

from __future__ import annotations

import os
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from posttrain.verify import read_table

Form = Literal["call", "script", "stdio"]
Aim = Literal["verdict", "sandbox", "machine"]
"""The target of an attack program: the verdict, the walls around it, or the judge's time and memory."""

_ANOTHER_VALUE = "\n\n\ndef solve(n):\n    return 0\n"
_SUM_IF_ESCAPED = """

def solve(n):
    try:
        worked = escaped()
    except Exception:
        worked = False
    return n * (n + 1) // 2 if worked else 0
"""


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
        values = (self.folder, self.secret_file, self.port, self.socket, self.pid)
        return f"FOLDER, SECRET_FILE, PORT, SOCKET, PID = {', '.join(map(repr, values))}\n"


@dataclass(frozen=True)
class Attack:
    """A program that does not solve the task and wants to be paid for it: any verdict other than 0 means a breach."""

    name: str
    aim: Aim
    tries: str
    """What it attempts, in words."""
    body: str
    form: Form = "call"
    """Which tests it is aimed at; those of form call are aimed at scripts too."""
    numbers_of_other_types: bool = False
    """It returns the right number as another type: right where equality is Python's."""

    def source(self, scene: Scene) -> str:
        return scene.header() + self.body


def _read() -> tuple[Attack, ...]:
    told = read_table(Path(__file__).with_suffix(".yaml"))
    parts = told.pop("parts")
    return tuple(_attack(name, aim, parts, **row) for aim, rows in told.items() for name, row in rows.items())


def _attack(name: str, aim: Aim, parts: dict[str, str], *, program: str, uses: str = "", **more: Any) -> Attack:
    body = parts.get(uses, "") + program
    if aim == "sandbox":
        body = f"def escaped():\n{textwrap.indent(body, '    ')}{_SUM_IF_ESCAPED}"
    elif "def solve" not in body and more.get("form") != "stdio":
        body = body.rstrip("\n") + _ANOTHER_VALUE
    return Attack(name, aim, body=body, **more)


ATTACKS: tuple[Attack, ...] = _read()

HONEST = "def solve(n):\n    return sum(range(n + 1))\n"
"""What they pretend to be."""
HONEST_STDIO = "print(sum(range(int(input()) + 1)))\n"

CALL_TESTS: dict[str, Any] = {
    "tests": [{"input": [n], "output": n * (n + 1) // 2} for n in (10, 100, 1)],
    "entry_point": "solve",
}
ASSERTIONS: dict[str, Any] = {"test_list": [f"assert solve({n}) == {n * (n + 1) // 2}" for n in (10, 100, 1)]}
SCRIPT: dict[str, Any] = {
    "test": "def check(candidate):\n"
    "    cases = [(n, n * (n + 1) // 2) for n in (10, 100, 1)]\n"
    "    assert all(map(lambda case: candidate(case[0]) == case[1], cases))\n"
    "    for n, total in cases:\n"
    "        assert candidate(n) == total\n"
    "        assert abs(candidate(n) - total) < 1e-6\n",
    "entry_point": "solve",
}
STDIO: dict[str, Any] = {"tests": [{"input": f"{n}\n", "output": f"{n * (n + 1) // 2}\n"} for n in (100, 10)]}


def tests_for(attack: Attack) -> list[dict[str, Any]]:
    """The forms of tests that an attack is aimed at."""
    if attack.form == "stdio":
        return [STDIO]
    return [CALL_TESTS] if attack.numbers_of_other_types else [CALL_TESTS, ASSERTIONS, SCRIPT]


def fenced(source: str) -> str:
    """A program as a completion."""
    return f"```python\n{source}\n```"
