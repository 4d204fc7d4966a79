"""The first lines of an engine's process, before imports that take seconds: `python -P begin.py MODULE ARGUMENT ...`.

An engine ends with its trainer because it reads the end of its socket. One that was stopped reads nothing, so the
kernel is asked to end it as well; where that cannot be asked for (it is Linux's own) only the socket is left.
"""

import ctypes
import runpy
import signal
import sys
from contextlib import suppress

PR_SET_PDEATHSIG = 1
"""Option of `prctl(2)`: the signal that a process gets when the thread that started it has ended."""

if __name__ == "__main__":
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
