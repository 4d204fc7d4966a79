"""Starts the followers that send a run to trackers (posttrain.report.tracking), and gives them time to finish."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from posttrain.report.terminal import TerminalView
from posttrain.shown import shown

LAST_SECONDS = 60.0
"""Seconds that trackers get after the run to send the rest."""


@contextmanager
def tracking(folder: Path, names: Sequence[str], view: TerminalView) -> Iterator[None]:
    """A context around a whole run, including its final error. A failure of a tracker is a warning, not an error."""
    started = dict[str, subprocess.Popen[bytes]]()
    for name in dict.fromkeys(names):
        try:
            started[name] = _start(folder, name)
        except OSError as error:
            view.event("warning", f"report_to {name}: could not be started ({error})")
    try:
        yield
    finally:
        for follower in started.values():
            if follower.stdin:
                follower.stdin.close()
        deadline = time.monotonic() + LAST_SECONDS
        for name, follower in started.items():
            if said := _end(follower, deadline, folder / "tracking" / f"{name}.log"):
                again = f"`posttrain track {shown(folder)} --to {name}` sends the rest"
                view.event("warning", f"report_to {name}: {said}; {again}")


def _start(folder: Path, name: str) -> subprocess.Popen[bytes]:
    (folder / "tracking").mkdir(exist_ok=True)
    with (folder / "tracking" / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "posttrain.report.tracking", str(folder.absolute()), name],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C must reach only the run
        )


def _end(follower: subprocess.Popen[bytes], deadline: float, log: Path) -> str:
    """Wait for a follower, and describe what went wrong; empty if nothing did."""
    try:
        status = follower.wait(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return f"is still sending after {LAST_SECONDS:.0f} seconds and is left to finish alone"
    except KeyboardInterrupt:
        return "is still sending"
    if status == 0:
        return ""
    if status < 0:
        return f"signal {signal.Signals(-status).name} ended it"
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
    last = next((line.strip() for line in reversed(lines) if line.strip()), f"exit status {status}")
    return f"it failed ({last})"
