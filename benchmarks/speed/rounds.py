"""Sides take turns: each waits in its own process, and one after the other does one step, round after round.

So all of them run on the same machine, and a slow moment affects all of them equally. Medians are compared; the lowest
and the highest ratio of single rounds show how far to trust them.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
PEERS = {"trl": "trl", "transformers": "trl", "vllm": "vllm"}
"""Side -> library whose environment it needs. Other sides run in our environment."""
LATE = "its time was over"


@dataclass(frozen=True, kw_only=True)
class Side:
    """One column of a table."""

    name: str
    side: str
    """Name of its module in `sides`."""
    task: str
    """Name of the function in that module."""
    settings: dict[str, Any] = field(default_factory=dict)
    rounds: int | None = None
    """Largest number of rounds in which the side takes part, for sides whose step takes minutes."""
    varying: bool = False
    """Whether completions have other lengths in each step."""
    device: str = "cpu"
    """The device, cpu or cuda, whose memory is reported."""
    checkout: Path | None = None
    """The checkout of posttrain that is measured; None: this one."""


class SideFailed(RuntimeError):
    """A worker has ended, or has reported why it cannot continue."""


class Worker:
    """A side that waits at its gate. Its runs and other temporary files are removed when it is closed."""

    def __init__(self, side: Side, folder: Path, log: Path, *, seconds: float | None = None) -> None:
        """`seconds`: time limit, after which the worker and every process that it started are killed."""
        job: dict[str, Any] = {"side": side.side, "task": side.task, "folder": str(folder), "settings": side.settings}
        job |= {"varying": side.varying, "device": side.device}
        python = interpreter(side.side)
        self.side, self._log = side, log
        self._scratch = tempfile.TemporaryDirectory(prefix="side-", ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.speed.worker", json.dumps(job)],
            cwd=side.checkout or ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
            env=os.environ
            | {"OMP_NUM_THREADS": str(os.cpu_count()), "TOKENIZERS_PARALLELISM": "false"}
            | {"TMPDIR": self._scratch.name}
            | ({"PYTHONPATH": f"{side.checkout}/src{os.pathsep}{side.checkout}"} if side.checkout else {}),
        )
        self._late, self._timer = False, threading.Timer(seconds or 0, self._kill)
        if seconds is not None:
            self._timer.daemon = True
            self._timer.start()
        try:
            self.ready = self._reply()
        except BaseException:
            self.close()
            raise

    def step(self) -> dict[str, Any]:
        """Let the side do one step, and return its report."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self._reply()

    def close(self) -> None:
        """End the worker. The signal tells a training run to end after its step; closing its input ends its wait."""
        assert self._process.stdin is not None
        self._timer.cancel()
        self._process.terminate()
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._scratch.cleanup()

    def _kill(self) -> None:
        self._late = True
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(self._process.pid)
            root.suspend()  # so that it starts no more processes
            for one in [root, *root.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    one.kill()

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        reply = json.loads(line) if line else {"error": self._how_it_ended()}
        if "error" in reply:
            raise SideFailed(reply["error"])
        return reply

    def _how_it_ended(self) -> str:
        """How the worker ended, without paths, because the text is saved. Its output is printed now."""
        code = self._process.wait(60)
        if self._late:
            return LATE
        if code == -signal.SIGKILL:
            return "the system killed it, probably because memory ran out"
        print(self._log.read_text(errors="replace")[-2000:], file=sys.stderr)
        return f"it ended with exit code {code} and without a word"


def interpreter(side: str) -> str:
    """The Python interpreter with the library of a side. `make bench` builds the other libraries' environments and sets
    the variables that name them."""
    if side not in PEERS:
        return sys.executable
    variable = f"POSTTRAIN_BENCH_{PEERS[side].upper()}"
    if variable not in os.environ:
        how = "run `make bench`, or `make bench-gpu` on a card"
        raise SideFailed(f"{variable} does not name the environment of {PEERS[side]}: {how}")
    return str(Path(os.environ[variable]) / "bin" / "python")


def in_turns(sides: Sequence[Side], folder: Path, *, rounds: int) -> dict[str, dict[str, Any]]:
    """Measure `rounds` steps of each side in turns, and return a `summary` by name, or the reason of a failure."""
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    found: dict[str, list[dict[str, Any]]] = {side.name: [] for side in sides}
    failures: dict[str, str] = {}
    with ExitStack() as resources:
        workers: list[Worker] = []
        for place, side in enumerate(sides):
            with alone_on_the_machine(), _noted(side, failures):
                workers.append(Worker(side, folder, logs / f"{side.side}-{side.task}-{place}.log"))
                resources.callback(workers[-1].close)
        for number in range(rounds):
            for worker in [worker for worker in workers if number < (worker.side.rounds or rounds)]:
                with alone_on_the_machine(), _noted(worker.side, failures):
                    found[worker.side.name].append(worker.step())
    measured = {name: summary(steps) for name, steps in found.items() if steps}
    return measured | {name: {"failed": reason} for name, reason in failures.items()}


@contextlib.contextmanager
def _noted(side: Side, failures: dict[str, str]) -> Iterator[None]:
    """Record the failure of a side, and let the others continue."""
    try:
        yield
    except (SideFailed, OSError) as reason:
        failures.setdefault(side.name, str(reason))


def summary(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Median seconds, all seconds, the highest memory, and the median of all other reported figures.

    >>> summary([{"seconds": 2.0, "peak_bytes": 5}, {"seconds": 3.0, "peak_bytes": 7}])["seconds"]
    2.5
    """
    seconds = [step["seconds"] for step in steps]
    peaks = [step["peak_bytes"] for step in steps if step.get("peak_bytes")]
    others = {name for step in steps for name in step} - {"seconds", "peak_bytes"}
    return {
        "seconds": round(statistics.median(seconds), 3),
        "rounds": [round(value, 3) for value in seconds],
        **({"peak_mb": round(max(peaks) / 2**20)} if peaks else {}),
        **{name: round(statistics.median(step.get(name, 0.0) for step in steps), 4) for name in sorted(others)},
    }


def ratio(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, float]:
    """Our speed relative to theirs: from the medians, and the lowest and the highest of single rounds.

    A side that was measured once is compared with every round of the other.

    >>> ratio({"seconds": 2.0, "rounds": [1.0, 2.0, 4.0]}, {"seconds": 8.0, "rounds": [8.0]})
    {'speed': 4.0, 'lowest': 2.0, 'highest': 8.0}
    """
    both = ours["rounds"], theirs["rounds"]
    side_by_side = itertools.product(*both) if 1 in map(len, both) else zip(*both)  # noqa: B905
    pairs = [their / our for our, their in side_by_side]
    memory = (
        {"memory": round(ours["peak_mb"] / theirs["peak_mb"], 2)} if "peak_mb" in ours and "peak_mb" in theirs else {}
    )
    return {
        "speed": round(theirs["seconds"] / ours["seconds"], 2),
        "lowest": round(min(pairs), 2),
        "highest": round(max(pairs), 2),
        **memory,
    }


@contextlib.contextmanager
def alone_on_the_machine() -> Iterator[None]:
    """Hold the lock of the file that POSTTRAIN_BENCH_LOCK names, if it is set, for measurements on shared machines."""
    path = os.environ.get("POSTTRAIN_BENCH_LOCK")
    if path is None:
        yield
        return
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
