"""Test in the probe process whether a reward works in threads, under asyncio and in a spawned process."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

from posttrain.rewards.audit.calling import Calling
from posttrain.rewards.calls import Outcome, own_runner
from posttrain.rewards.load import Target, load

THREADS = 4
STALL_TRIES = 3
"""Number of tries. The smallest of their worst stalls counts: a busy machine stalls once, a blocking reward always."""
BEAT = 0.005
"""Seconds between two heartbeats of the watched event loop."""
SPAWN_SECONDS = 15.0


def probe(calling: Calling) -> dict[str, Any]:
    """Failures of calls that work in the main thread but not elsewhere, by place; and the worst stall in seconds."""
    with own_runner() as runner:  # open until the end: it may be the loop of the reward's file
        expected = calling.run(runner)
        problems = {
            "in a thread": _difference(calling, expected, _threaded(calling, 1)),
            f"in {THREADS} threads at once": _difference(calling, expected, _threaded(calling, THREADS)),
            "under asyncio": "",
            "in a spawned process": _spawn(calling),
        }
        stalls = []
        for _ in range(STALL_TRIES):
            outcomes, stall = asyncio.run(_under_asyncio(calling))
            problems["under asyncio"] = problems["under asyncio"] or _difference(calling, expected, [outcomes])
            stalls.append(stall)
        return {"problems": {place: text for place, text in problems.items() if text}, "stall": min(stalls)}


def _threaded(calling: Calling, number: int) -> list[list[Outcome]]:
    """The outcomes of all calls, in each of several threads that start together."""
    together = threading.Barrier(number)
    found: list[list[Outcome]] = []

    def work() -> None:
        with asyncio.Runner() as runner:
            together.wait()
            found.append(calling.run(runner))

    threads = [threading.Thread(target=work, daemon=True) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


async def _under_asyncio(calling: Calling) -> tuple[list[Outcome], float]:
    """The outcomes, and the longest time without a heartbeat of the event loop.

    A plain function runs in a thread of the loop, as in servers: then only code that holds the interpreter lock can
    stall the loop. A coroutine runs in the loop itself.
    """
    longest, done = 0.0, False

    async def beat() -> None:
        nonlocal longest
        last = time.perf_counter()
        while not done:
            await asyncio.sleep(BEAT)
            now = time.perf_counter()
            longest, last = max(longest, now - last - BEAT), now

    heart = asyncio.create_task(beat())
    await asyncio.sleep(2 * BEAT)
    if calling.is_async:
        outcomes = [await _awaited(calling, call) for call in calling.calls]
    else:
        outcomes = await asyncio.to_thread(_plain, calling)
    await asyncio.sleep(2 * BEAT)
    done = True
    await heart
    return outcomes, longest


async def _awaited(calling: Calling, call: Mapping[str, Any]) -> Outcome:
    from posttrain.rewards.calls import failed, judged

    try:
        return judged(await calling.function(**call, **calling.settings), 0.0)
    except Exception as error:
        return failed(error)


def _plain(calling: Calling) -> list[Outcome]:
    with asyncio.Runner() as runner:
        return calling.run(runner)


def _difference(calling: Calling, expected: Sequence[Outcome], found: Sequence[Sequence[Outcome]]) -> str:
    """The problem of the first call that failed elsewhere but not in the main thread, or that gave another score."""
    for outcomes in found:
        for here, there in zip(expected, outcomes, strict=True):
            if there.failed and not here.failed:
                return there.message
            if there.value != here.value and not calling.options["stochastic"]:
                return f"a score of {there.value} instead of {here.value}"
    return ""


def _spawn(calling: Calling) -> str:
    """The problem when the function is pickled, sent to a spawned process and called there; empty if none."""
    try:
        pickled = bytes(ForkingPickler.dumps(calling.function))
    except Exception as error:
        return f"it cannot be pickled: {type(error).__name__}: {error}"
    if calling.is_async or not calling.calls:
        return ""
    context = multiprocessing.get_context("spawn")
    inbox, outbox = context.Pipe(duplex=False)
    call = {**calling.calls[0], **calling.settings}
    process = context.Process(target=_spawned, args=(outbox, calling.target, pickled, call), daemon=True)
    process.start()
    outbox.close()
    try:
        return inbox.recv() if inbox.poll(SPAWN_SECONDS) else f"no answer after {SPAWN_SECONDS:g} s"
    except EOFError:
        return "the process ended without an answer"
    finally:
        process.kill()
        process.join()


def _spawned(outbox: Any, target: Target, pickled: bytes, call: Mapping[str, Any]) -> None:
    """Call the function in the spawned process. The module is loaded first, so that pickle finds the function."""
    try:
        load(target)
        ForkingPickler.loads(pickled)(**call)  # type: ignore[arg-type]
        outbox.send("")
    except Exception as error:
        outbox.send(f"{type(error).__name__}: {error}")
