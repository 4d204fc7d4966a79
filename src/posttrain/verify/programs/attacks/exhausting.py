"""Attacks on time, memory and whoever reads the answer."""

from __future__ import annotations

from posttrain.verify.programs.attacks.scene import Attack, wrong

RESOURCES = (
    wrong("busy", "computes for ever", "def solve(n):\n    while True:\n        pass"),
    wrong("busy_in_c", "computes for ever without ever coming back to Python", "def solve(n):\n    return 9**9**9"),
    wrong("busy_on_import", "computes for ever before the first call", "while True:\n    pass"),
    wrong("sleep", "sleeps", "import time\ndef solve(n):\n    time.sleep(1000)"),
    wrong("deaf", "ignores the signals that ask it to end", """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
def solve(n):
    while True:
        pass
"""),
    wrong("regular_expression", "a pattern that backtracks for ever", """
import re
def solve(n):
    return len(re.findall("(a+)+$", "a" * 60 + "b"))
"""),
    wrong("memory", "asks for 8 GB at once", "def solve(n):\n    return len(bytearray(8 << 30)) * 0"),
    wrong("memory_in_steps", "asks for memory until there is none", """
def solve(n):
    kept = []
    while True:
        kept.append(bytes(1 << 24))
"""),
    wrong("threads", "starts threads until it may not", """
import threading, time
def solve(n):
    for _ in range(2000):
        threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
    return 0
"""),
    wrong("forks", "makes processes until it may not", """
import os
def solve(n):
    for _ in range(40):
        if os.fork() == 0:
            os._exit(0)
    return 0
"""),
    wrong("output", "writes without end", """
def solve(n):
    while True:
        print("x" * 10_000)
"""),
    wrong("errors", "writes errors without end", """
import os
def solve(n):
    while True:
        os.write(2, b"x" * 10_000)
"""),
    wrong("open_files", "opens files until it may not", """
import os
def solve(n):
    kept = []
    while True:
        kept.append(os.dup(1))
"""),
)  # fmt: skip

ANSWERS = (
    wrong("large_text", "answers with 256 MB", "def solve(n):\n    return '0' * (1 << 28)"),
    wrong("large_list", "answers with ten million numbers", "def solve(n):\n    return [0] * 10_000_000"),
    wrong("deep_list", "answers with a list in a list in a list ...", """
def solve(n):
    value = 0
    for _ in range(100_000):
        value = [value]
    return value
"""),
    wrong("own_list", "answers with a list that holds itself", "def solve(n):\n    v = []\n    v += [v]\n    return v"),
    wrong("wide_sharing", "answers with a small object that is 2^40 parts when written out", """
def solve(n):
    value = [0]
    for _ in range(40):
        value = [value, value]
    return value
"""),
    wrong("endless_iterator", "answers with an iterator that does not end", """
import itertools
def solve(n):
    return (0 for _ in itertools.count())
"""),
    wrong("recursion", "calls itself without end", "def solve(n):\n    return solve(n + 1)"),
    wrong("recursion_without_limit", "calls itself until the stack is gone", """
import sys
sys.setrecursionlimit(1_000_000_000)
def solve(n):
    return [solve(n)]
"""),
    wrong("nan", "answers with nan", "def solve(n):\n    return float('nan')"),
    wrong("infinity", "answers with infinity", "def solve(n):\n    return float('inf')"),
    wrong("large_integer", "answers with 10^5000", "def solve(n):\n    return 10**5000"),
    wrong("colliding_set", "answers with a set whose parts all have one hash", """
def solve(n):
    return {k * (2**61 - 1) for k in range(1, 2000)}
"""),
    wrong("surrogates", "answers with half a character", "def solve(n):\n    return chr(0xD800) * 10"),
    wrong("crash", "takes its own process down", "import ctypes\ndef solve(n):\n    ctypes.string_at(0)"),
)  # fmt: skip

EXHAUSTING: tuple[Attack, ...] = (*RESOURCES, *ANSWERS)
