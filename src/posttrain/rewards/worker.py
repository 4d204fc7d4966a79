"""The process in which reward functions run: `python -m posttrain.rewards.worker FD`.

It receives requests over the socket FD. If it has to import the function, it sends `{"ready": signature}` or
`{"failed": error}`. Then it sends one `{"call": number, "outcome": ...}` per call. The last message of a request has
`"done": true`. It keeps no clock: its parent kills it when it is late. File descriptors 1 and 2 are a pipe to the
parent, so that the output of user code never mixes with the protocol.
"""

from __future__ import annotations

import faulthandler
import functools
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from posttrain import wire
from posttrain.descendants import keep_orphans
from posttrain.errors import PosttrainError
from posttrain.rewards.calls import Outcome, Signature, own_runner, run_calls
from posttrain.rewards.load import Target, load

if TYPE_CHECKING:
    import asyncio


def main() -> None:
    die_with_parent(os.dup(0))
    keep_orphans()
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # before the parent kills us, it asks for a traceback
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    loaded: dict[Target, tuple[Callable[..., Any], Signature]] = {}
    with ExitStack() as ends:
        runner = functools.cache(lambda: ends.enter_context(own_runner()))  # one, so that open clients stay usable
        for request in wire.messages(channel):
            _serve(request, loaded, runner, lambda message: channel.sendall(wire.encode(message)))


def _serve(
    request: dict[str, Any],
    loaded: dict[Target, tuple[Callable[..., Any], Signature]],
    runner: Callable[[], asyncio.Runner],
    reply: Callable[[dict[str, Any]], None],
) -> None:
    target = Target(**request["target"])
    calls = request["calls"]
    if target not in loaded:
        try:
            function = load(target)
            signature = Signature.of(function, target.name)
            loaded[target] = function, signature
        except PosttrainError as error:
            reply({"failed": {"given": error.given, "allowed": error.allowed, "fix": error.fix}, "done": True})
            return
        reply({"ready": asdict(loaded[target][1]), "done": not calls})
    elif not calls:
        reply({"done": True})
    function, signature = loaded[target]
    if signature.is_async or "asyncio" in sys.modules:  # a plain function may ask asyncio for its event loop
        runner()
    left = len(calls)

    def emit(number: int, outcome: Outcome) -> None:
        nonlocal left
        left -= 1
        reply({"call": number, "outcome": asdict(outcome), "done": left == 0})

    run_calls(
        function,
        calls,
        request["settings"],
        is_async=signature.is_async,
        timeout=request["timeout"],
        emit=emit,
        runner=runner() if signature.is_async else None,
    )


def die_with_parent(lifeline: int) -> None:
    """Kill this process group when the parent's end of the pipe closes, however the parent ended.

    On Linux the kernel does this: the signal of asynchronous I/O on the pipe is set to SIGKILL, which works even while
    user code sleeps, ignores signals or holds the interpreter lock. (PR_SET_PDEATHSIG follows the *thread* that started
    us.)
    """
    if sys.platform == "linux":
        import fcntl

        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
        gone = select.poll()
        gone.register(lifeline, 0)
        if gone.poll(0):  # the parent ended before the signal was armed
            os._exit(1)
        return

    def wait() -> None:
        os.read(lifeline, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    main()
