"""Runs a server and ends everything that it has started: `python -P supervise.py FD BEGIN MODULE ARGUMENT ...`.

vLLM's core and its workers do not notice when nobody needs them any more: if the trainer is killed, they would stay and
keep their memory. This process leads their group and listens to a pipe whose other end only the trainer holds.
"""

import os
import select
import signal
import subprocess
import sys

LOOK = 0.1
"""Seconds between two looks at the server."""


def main() -> int:
    """Run the server and return its exit code, as shells count it."""
    alive, begin, *rest = sys.argv[1:]
    server = subprocess.Popen([sys.executable, "-P", begin, *rest])
    while server.poll() is None:
        if select.select([int(alive)], [], [], LOOK)[0]:
            os.killpg(0, signal.SIGKILL)  # also kills this process
    return server.returncode if server.returncode >= 0 else 128 - server.returncode


if __name__ == "__main__":
    sys.exit(main())
