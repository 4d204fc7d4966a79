"""Side effects of a reward. An audit hook of the interpreter watches its calls. This code runs in the probe process."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

from posttrain.rewards.audit.calling import Calling
from posttrain.rewards.calls import own_runner

MARKER = "posttrain_probe_value"
"""A name in the probe's completions. Code that contains it was made from their text."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_FILES = (
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"),
    "shutil.",
)
_NETWORK = (
    *("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "socket.gethostby"),
    "urllib.Request",
)
_PROCESSES = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "pty.spawn")
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGALRM", "SIGINT", "SIGTERM", "SIGCHLD") if hasattr(signal, name))


def probe(calling: Calling) -> dict[str, Any]:
    """The side effects of the calls in words, by sort. The first round is not watched, because it imports modules."""
    seen: dict[str, dict[str, None]] = {}
    watching = False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and (found := _sort(event, arguments)) is not None:
            seen.setdefault(found[0], {})[found[1]] = None

    sys.addaudithook(hook)
    with own_runner() as runner:
        runner.get_loop()  # a loop opens its own pair of sockets
        before = _globals()
        calling.run(runner)
        generators = _stirred()
        watching = True
        calling.run(runner)
        watching = False
    changed = [name for name, value in _globals().items() if before[name] != value]
    changed += [f"the state of {name}" for name, value in _generators().items() if generators.get(name, value) != value]
    if changed:
        seen["state"] = seen.get("state", {}) | dict.fromkeys(changed)
    return {sort: list(what)[:8] for sort, what in seen.items()}


def _sort(event: str, arguments: tuple[Any, ...]) -> tuple[str, str] | None:
    """(sort, words) for an event of the interpreter that is a side effect; None for other events."""
    if event == "open":
        path, _, flags = arguments
        quiet = not isinstance(path, str | bytes) or os.fsdecode(path).endswith((".pyc", os.devnull))
        if quiet or not (isinstance(flags, int) and flags & WRITING) or ".pyc." in os.fsdecode(path):
            return None
        return "files", f"opens {os.fsdecode(path)} for writing"
    if event == "exec":
        code = arguments[0]
        return ("text", f"runs {code.co_names}") if isinstance(code, CodeType) and MARKER in set(_names(code)) else None
    for sort, events in (("files", _FILES), ("network", _NETWORK), ("processes", _PROCESSES)):
        if event.startswith(events):
            return sort, f"{event} {' '.join(map(_shown, arguments[:2]))}".strip()
    if event == "os.chdir":
        return "state", f"the working directory: {_shown(arguments[0])}"
    if event in ("os.putenv", "os.unsetenv"):
        return "state", f"environment variable {_shown(arguments[0])}"
    return None


def _names(code: CodeType) -> Iterator[str]:
    """Yield every name and text in compiled code."""
    yield from code.co_names
    yield from code.co_varnames
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
        elif isinstance(constant, str):
            yield MARKER if MARKER in constant else constant


def _globals() -> dict[str, Any]:
    """The state that other code of the process shares, by name."""
    state = {
        "the working directory": os.getcwd(),
        "environment variables": dict(os.environ),
        "the recursion limit": sys.getrecursionlimit(),
    }
    return state | {f"the handler of {number.name}": signal.getsignal(number) for number in _SIGNALS}


def _generators() -> dict[str, Any]:
    """The states of the global random generators, for the modules that are loaded."""
    state: dict[str, Any] = {"random": random.getstate()}
    if (numpy := sys.modules.get("numpy")) is not None:
        state["numpy.random"] = repr(numpy.random.get_state())
    if (torch := sys.modules.get("torch")) is not None:
        state["torch's generator"] = torch.get_rng_state().tolist()
    return state


def _stirred() -> dict[str, Any]:
    """The states after drawing some numbers. A reward that seeds is then noticed even if it has seeded before."""
    random.random()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.random()
    if (torch := sys.modules.get("torch")) is not None:
        torch.rand(1)
    return _generators()


def _shown(value: Any) -> str:
    text = os.fsdecode(value) if isinstance(value, bytes) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
