"""Rewards that are hard to run together with other code."""

import asyncio
import random
import re
import signal
import threading
import time

from tests.rewards.audit.planted.honest import marked


def alarm(completion, answer):
    """Sets a time-out by a signal, which only the main thread can do."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(5)
    try:
        return marked(completion, answer)
    finally:
        signal.alarm(0)


class Locked:
    """Holds a lock, which no other process can receive."""

    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self, completion, answer):
        with self.lock:
            return marked(completion, answer)


locked = Locked()


async def blocking(completion, answer):
    """Sleeps in the event loop."""
    time.sleep(0.15)
    return marked(completion, answer)


_text = ""


def shared(completion, answer):
    """Keeps the text in a global variable while it waits."""
    global _text
    _text = completion
    time.sleep(0.002 * random.SystemRandom().random())
    return marked(_text, answer)


def loops(completion, answer):
    """Starts an event loop, which fails inside another one but works in a thread."""
    return asyncio.run(_marked(completion, answer))


async def _marked(completion, answer):
    return marked(completion, answer)


def slow(completion, answer):
    time.sleep(0.004)
    return marked(completion, answer)


def hangs(completion, answer):
    """Runs a regular expression that tries every way to split a run of parentheses."""
    if re.search(r"(\(+)+7\)+$", completion):
        return 0.0
    return marked(completion, answer)


def dies(completion, answer):
    """Recurses without a limit, in C."""
    if len(completion) > 100_000:
        signal.raise_signal(signal.SIGKILL)
    return marked(completion, answer)


def longer_is_better(completion, answer):
    return marked(completion, answer) * (1 + len(completion) / 5000)


def bold_is_better(completion, answer):
    return marked(completion, answer) + 0.2 * ("**" in completion)
