"""The fork-server: `main('{"socket": 3, ...}')` in its own interpreter. It runs one program at a time in a new child.

It imports common modules once, so that a child starts warm. It never sees a program, its input or its output: these
travel over descriptors that come with each request. The server closes them as soon as the child has them. Therefore no
data of one program is in the memory of the next. It imports nothing of posttrain.

Over the socket (one datagram each): in, the limits with four descriptors (stdin, stdout, stderr, channel), or `kill`;
out, `{"hello": ...}` once, then `{"status": ..., "late": ..., "cpu": ...}` when a program has ended and is gone.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress

from . import confine, landlock, program

PRELOADED = """
    abc array ast base64 binascii bisect builtins calendar cmath codecs collections collections.abc contextlib copy
    dataclasses datetime decimal encodings.latin_1 enum fractions functools hashlib heapq inspect io itertools json
    keyword math numbers operator os pprint queue random re reprlib secrets statistics string struct sys textwrap
    threading time timeit traceback types typing unicodedata urllib.parse weakref zlib _strptime
    """
"""Modules that programs import most. More would make each fork slower; other modules are imported on request."""


def main(given: str) -> None:
    """Start the server. `given` is JSON: the setup of `Confinement`, `socket`, and the descriptor `parent` or null."""
    gc.disable()  # imports make no garbage
    setup = json.loads(given)
    control = _connect(setup["socket"])
    os.environ.clear()
    sys.argv = [program.NAME]
    confine.harden_server()
    try:
        for name in PRELOADED.split():
            _import(name)
        box = confine.Confinement(setup)
    except OSError as error:
        control.send(json.dumps({"failed": str(error), "errno": error.errno}).encode())
        return
    os.chdir("/")
    gc.collect()
    gc.freeze()
    gc.enable()
    control.send(json.dumps({"hello": os.getpid(), "landlock": _landlock(box)}).encode())
    serve(control, setup["parent"], box)
    os._exit(0)  # there is nothing to flush or close


def serve(control: socket.socket, parent: int | None, box: confine.Confinement) -> None:
    """Serve until the other end of the socket closes or the process behind the descriptor `parent` ends."""
    here = os.getpid()
    while _wait([control.fileno(), parent], None) == control.fileno():
        request, descriptors, _, _ = socket.recv_fds(control, 4096, 4)
        if not request:
            return
        if request == b"kill":  # for a program that had already ended
            continue
        limits = json.loads(request)
        box.prepare()
        child = os.fork()
        if child == 0:
            _become(box, limits, descriptors, here)
        for one in descriptors:
            os.close(one)
        report = _supervise(child, control, parent, limits["wall"])
        if report is None:
            return
        control.send(json.dumps(report).encode())


def _become(box: confine.Confinement, limits: dict, descriptors: list[int], server: int) -> None:
    """Become the child that runs the program. Never returns to the loop of the server."""
    try:
        channel = os.dup(descriptors[program.CHANNEL])
        try:
            box.apply(limits, descriptors, server)
        except BaseException as error:
            text = f"{type(error).__name__}: {error}".encode()
            for one in (program.CHANNEL, channel):
                try:
                    os.write(one, struct.pack(">I", len(text)) + text)
                    break
                except OSError:
                    continue
            os._exit(program.NOT_CONFINED)
        gc.unfreeze()
        program.run()
    finally:
        os._exit(1)


def _supervise(child: int, control: socket.socket, parent: int | None, wall: float) -> dict | None:
    """Wait for the child's end, or kill it at the deadline or on request. Leave no process. None: end the server."""
    deadline, late, orphaned = time.monotonic() + wall, False, False
    watch = os.pidfd_open(child)
    try:
        while True:
            ready = _wait([watch, control.fileno(), parent], deadline)
            if ready == watch:
                break
            late = late or ready is None
            if ready == control.fileno():
                orphaned = control.recv(16) != b"kill"
            orphaned = orphaned or (ready is not None and ready == parent)
            signal.pidfd_send_signal(watch, signal.SIGKILL)
            _wait([watch], None)
            break
    finally:
        os.close(watch)
    _, status, used = os.wait4(child, 0)
    _sweep()
    if orphaned:
        return None
    return {"status": status, "late": late, "cpu": used.ru_utime + used.ru_stime, "peak": used.ru_maxrss * 1024}


def _sweep() -> None:
    """Kill and reap processes that the program left behind. With the filter there are none: it cannot fork."""
    while True:
        try:
            gone, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if gone:
            continue
        for name in os.listdir("/proc"):
            if name.isdigit() and _parent_of(name) == os.getpid():
                os.kill(int(name), signal.SIGKILL)
        time.sleep(0.001)


def _parent_of(name: str) -> int | None:
    try:
        with open(f"/proc/{name}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return None


def _wait(descriptors: list[int | None], deadline: float | None) -> int | None:
    """The first descriptor, in the given order, that can be read or has closed; None at the deadline."""
    poll = select.poll()
    for one in descriptors:
        if one is not None:
            poll.register(one, select.POLLIN)
    left = None if deadline is None else max(0, deadline - time.monotonic()) * 1000
    ready = {one for one, _ in poll.poll(left)}
    return next((one for one in descriptors if one in ready), None)


def _connect(address: int | str) -> socket.socket:
    if isinstance(address, int):
        return socket.socket(fileno=address)
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.connect(address)
    return control


def _import(name: str) -> None:
    with suppress(ImportError):
        importlib.import_module(name)


def _landlock(box: confine.Confinement) -> int:
    return 0 if box.rules is None else landlock.abi()
