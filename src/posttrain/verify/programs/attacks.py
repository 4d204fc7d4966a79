"""Programs that try to earn a reward without solving the task: attacks that a code grader has to withstand.

The task is `solve(n)` = 1 + 2 + ... + n. No program in `attacks.yaml` solves it. Probes return the sum if they escaped
from the sandbox. A grader that gives one of them more than 0 has been fooled. They come from published cases: Baker et
al. (arXiv:2503.11926), Anthropic (arXiv:2511.18397), METR (June 2025), ImpossibleBench (arXiv:2510.20270) and
Berkeley's BenchJack (2026).

    for attack in ATTACKS:
        for tests in tests_for(attack):
            assert code(fenced(attack.source(Scene())), **tests) == 0

Many of these attacks are real. Run them only in a sandbox, and never directly.
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
"""The target of an attack program: the verdict, the sandbox, or the judge's time and memory."""

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
    """Targets outside of the sandbox that probes try to reach. The caller inspects them afterwards."""

    folder: str = "/tmp"
    """A folder in which nothing must appear."""
    secret_file: str = "/etc/passwd"
    """A file that must not be read."""
    port: int = 9
    """A TCP port on the loopback address that must not be reached."""
    socket: str = "posttrain-probe"
    """The name of an abstract Unix socket that must not be reached."""
    pid: int = field(default_factory=os.getpid)
    """A process that must not be signalled, traced or read."""

    def header(self) -> str:
        """The targets as a line of source for the programs."""
        values = (self.folder, self.secret_file, self.port, self.socket, self.pid)
        return f"FOLDER, SECRET_FILE, PORT, SOCKET, PID = {', '.join(map(repr, values))}\n"


@dataclass(frozen=True)
class Attack:
    """A program that tries to earn a reward without solving the task. Any verdict other than 0 means a breach."""

    name: str
    aim: Aim
    tries: str
    """The attempt, in words."""
    body: str
    form: Form = "call"
    """The form of tests that it targets. Attacks of form call target scripts too."""
    numbers_of_other_types: bool = False
    """True if it returns the right number as another type, which is right under Python's equality."""

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
"""A program that solves the task."""
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
    """The tests that an attack targets."""
    if attack.form == "stdio":
        return [STDIO]
    return [CALL_TESTS] if attack.numbers_of_other_types else [CALL_TESTS, ASSERTIONS, SCRIPT]


def fenced(source: str) -> str:
    """The program as a completion: in a fenced block."""
    return f"```python\n{source}\n```"
