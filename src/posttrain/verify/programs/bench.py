"""The bench that runs the tests of one program: a sandbox, its limits, one clock for all tests, and the driver."""

from __future__ import annotations

import marshal
import secrets
import sys
import time
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from posttrain.verify.programs.plain import NotPlain, dump, load, unpack
from posttrain.verify.sandbox import Limits, Ran, Sandbox, SandboxUnavailable
from posttrain.verify.verdict import Reason

FILES = ("plain.py", "driver.py")
_OURS = ("from __future__ ", "from posttrain.")

_CALL = "send(answer_call(load(receive())))"
_SCRIPT = """
def ask(message):
    send(message)
    return receive()
send(answer_script(load(receive()), ask))
"""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules by which programs are judged."""

    limits: Limits = field(default_factory=Limits)
    """Limits of each process: one test, or one call of a script."""
    seconds: float = 10.0
    """Seconds for all tests of one program together. Tests that are open after that have failed."""
    partial: bool = False
    float_ok: bool | None = None
    tolerance: float = 0.0


@dataclass(frozen=True)
class Problem:
    """The reason why a test failed."""

    reason: Reason
    detail: str


@dataclass(frozen=True)
class Answer:
    """The result of a call: a value, or the error that it raised."""

    value: Any = None
    error: str = ""
    text: str = ""


class Bench:
    """Runs one process per test, or per call of a script."""

    def __init__(self, sandbox: Sandbox, rules: Rules) -> None:
        self.sandbox, self.rules = sandbox, rules
        self._until = time.monotonic() + rules.seconds

    @property
    def left(self) -> float:
        """Remaining seconds, at least 0."""
        return max(0.0, self._until - time.monotonic())

    @property
    def late(self) -> bool:
        return self.left == 0

    @property
    def too_late(self) -> Problem:
        return Problem("timeout", f"all tests together took more than {self.rules.seconds:g} s")

    def run(self, source: str, stdin: bytes = b"", message: bytes | None = None, *, output: int = 0) -> Ran | Problem:
        """Run a fresh process to its end. SandboxUnavailable: two attempts failed.

        `output`: bytes that it may write, if that is more than the limit.
        """
        try:
            ran = self._run_once(source, stdin, message, output)
        except SandboxUnavailable:
            ran = self._run_once(source, stdin, message, output)
        return _ended_badly(ran) or ran

    def ask(self, task: dict[str, Any]) -> Answer | Problem:
        """Make one call in a fresh process. The answer is read as plain data. Anything else is a `Problem`."""
        nonce = secrets.token_hex(16)
        ran = self.run(call_driver(), message=dump({**task, "nonce": nonce}))
        if isinstance(ran, Problem):
            return ran
        if ran.result is None:
            return Problem("error", f"the program sent {len(ran.messages)} answers instead of one")
        try:
            answer = load(ran.result)
            if answer.get("nonce") != nonce:
                return Problem("error", "the program sent a forged answer")
            if "value" in answer:
                return Answer(unpack(answer["value"]))
            return Answer(error=f"{answer.get('error')!s:.60}" or "an exception", text=f"{answer.get('text')!s:.200}")
        except NotPlain as error:
            return Problem("error", f"the program sent {error}")

    def _run_once(self, source: str, stdin: bytes, message: bytes | None, output: int) -> Ran:
        usual = self.rules.limits
        limits = replace(usual, wall=min(usual.wall, max(self.left, 0.1)), output=max(usual.output, output))
        process = self.sandbox.start(source, stdin=stdin, limits=limits)
        if message is not None:
            process.send(message)
        return process.finish()


def _ended_badly(ran: Ran) -> Problem | None:
    if ran.ended in ("wall", "cpu"):
        return Problem("timeout", f"the program was stopped after {ran.seconds:.1f} s ({ran.ended} time)")
    if ran.ended == "exited" and ran.returncode == 0:
        return None
    last = ran.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][:200]
    how = {"memory": "ran out of memory", "output": "wrote too much", "signal": f"died of signal {-ran.returncode}"}
    return Problem("error", f"the program {how.get(ran.ended, f'ended with status {ran.returncode}')} {last}".strip())


@cache
def call_driver() -> str:
    """Source that receives one task and sends the result of its call."""
    return _compiled(_CALL)


@cache
def script_driver() -> str:
    """Source that receives assertions, sends calls, receives their results, and finally sends whether all held."""
    return _compiled(_SCRIPT)


def _compiled(last: str) -> str:
    """Compiled code for this interpreter, which all tiers except containers use, with the source as a fallback.

    Compiling in every child would take longer than the rest of a test.
    """
    here = Path(__file__).parent
    parts = [_without_imports((here / name).read_text(encoding="utf-8")) for name in FILES]
    source = "\n".join(["from posttrain_channel import receive, send", *parts, last])
    code = compile(source, "<driver>", "exec", dont_inherit=True, optimize=2)
    return (
        "import marshal, sys\n"
        f"same = sys.version == {sys.version!r}\n"
        f"exec(marshal.loads({marshal.dumps(code)!r}) if same else {source!r})\n"
    )


def _without_imports(source: str) -> str:
    """The source without imports of each other's names and of annotations: in the sandbox, the files are one module."""
    lines = source.splitlines()
    return "\n".join(line for line in lines if not line.startswith(_OURS))
