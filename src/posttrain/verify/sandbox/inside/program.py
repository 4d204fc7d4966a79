"""Run one program in the process that was confined for it, and end that process.

The program can import `posttrain_channel` with `send(bytes)` and `receive() -> bytes`, which transfer whole messages
separately from stdin, stdout and stderr. A message is sent as its length in 4 bytes, big-endian, and then its bytes.
"""

from __future__ import annotations

import atexit
import builtins
import linecache
import os
import random
import struct
import sys
import threading
import traceback
import types

CHANNEL = 3
"""The descriptor of the channel. 0, 1 and 2 are stdin, stdout and stderr, and there are no others."""
NAME = "<program>"
OUT_OF_MEMORY, NOT_CONFINED = 77, 78
"""Our own exit codes: an uncaught MemoryError, and a failed confinement."""


def run() -> None:
    """Read the source, run it as `__main__`, and leave the process with its exit code. Does not return."""
    send(b"")  # we are confined: any later failure is the program's
    source = receive()
    sys.stdin, sys.stdout = open(0, encoding="utf-8"), open(1, "w", encoding="utf-8")  # noqa: SIM115 (they stay open)
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment] (of site, which is not imported; many use them)
    random.seed(0)  # the same program behaves the same each time
    code = _finish(_execute(source))
    os._exit(code)


def _execute(source: bytes) -> int:
    text = source.decode("utf-8", "replace")
    linecache.cache[NAME] = (len(text), None, text.splitlines(keepends=True), NAME)  # tracebacks show the line
    main = types.ModuleType("__main__")
    sys.modules["__main__"], sys.modules["posttrain_channel"] = main, _channel()
    sys.argv = [NAME]
    try:
        exec(compile(source, NAME, "exec", dont_inherit=True), main.__dict__)
    except BaseException as error:  # any exception becomes an exit code, as in every interpreter
        return _code_of(error)
    return 0


def _code_of(error: BaseException) -> int:
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    own = error.__traceback__.tb_next if error.__traceback__ else None
    traceback.print_exception(type(error), error, own)
    return OUT_OF_MEMORY if isinstance(error, MemoryError) else 1


def _finish(code: int) -> int:
    """End like an interpreter: wait for threads, call the registered functions, flush the output."""
    for step in (threading._shutdown, atexit._run_exitfuncs, sys.stdout.flush, sys.stderr.flush):  # type: ignore
        try:
            step()
        except SystemExit as error:
            code = _code_of(error)
        except BaseException:  # the program's own functions and files
            code = code or 1
    return code


def _channel() -> types.ModuleType:
    module = types.ModuleType("posttrain_channel")
    module.send, module.receive = send, receive  # type: ignore[attr-defined]
    return module


def send(message: bytes, _write=os.write, _pack=struct.pack) -> None:
    """Send one whole message to the judging process."""
    rest = memoryview(_pack(">I", len(message)) + message)
    while rest:
        rest = rest[_write(CHANNEL, rest) :]


def receive(_read=os.read, _unpack=struct.unpack) -> bytes:
    """Wait for the next message from the judging process. EOFError: there will be none."""

    def exactly(size: int) -> bytes:
        parts = []
        while size:
            part = _read(CHANNEL, min(size, 1 << 20))
            if not part:
                raise EOFError("the channel is closed")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    return exactly(_unpack(">I", exactly(4))[0])
