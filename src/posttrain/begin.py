"""The first code that runs in an engine's process, before the slow imports: `python -P begin.py MODULE ARGUMENT ...`.

An engine notices the end of its trainer because its socket closes. An engine that was stopped (SIGSTOP) reads nothing,
so this file also asks the kernel to kill it. Only Linux can do that; on other systems the socket is the only signal.
"""

import ctypes
import runpy
import signal
import sys
from contextlib import suppress

PR_SET_PDEATHSIG = 1
"""Option of `prctl(2)`: the signal that a process receives when the thread that started it has ended."""

if __name__ == "__main__":
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
