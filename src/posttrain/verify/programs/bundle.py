"""The driver as one program for the sandbox, compiled once: compiling it in every child would take longer than the
rest of a test."""

from __future__ import annotations

import marshal
import sys
from functools import cache
from pathlib import Path

FILES = ("plain.py", "driver.py")
_OURS = ("from __future__ ", "from posttrain.")

_CALL = "send(answer_call(load(receive())))"
_SCRIPT = """
def ask(message):
    send(message)
    return receive()
send(answer_script(load(receive()), ask))
"""


@cache
def call_driver() -> str:
    """Source that receives one task and sends what came of its call."""
    return _compiled(_CALL)


@cache
def script_driver() -> str:
    """Source that receives assertions, sends calls and receives their results, and last sends whether all held."""
    return _compiled(_SCRIPT)


def _compiled(last: str) -> str:
    """Compiled code for an interpreter like this one, which all tiers but a container have; source for another."""
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
    """The files are one module there: what they import of each other falls away, and annotations are not needed."""
    lines = source.splitlines()
    return "\n".join(line for line in lines if not line.startswith(_OURS))
