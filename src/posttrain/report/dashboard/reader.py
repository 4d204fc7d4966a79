"""Reads runs in a separate process, with a time limit and a memory limit for each request.

A run folder may come from anywhere. It may crash or hang its reader, for example by a file that expands without end.
Then only that process ends: the dashboard reports the run as unreadable and still shows the others. Requests and
answers are lines of JSON.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, BinaryIO

from posttrain.report.dashboard import pages
from posttrain.report.dashboard.runs import Unreadable, as_brief
from posttrain.report.page import render
from posttrain.report.store import finite, read_run

SECONDS, BYTES = 20.0, 6 << 30


class Reader:
    """A client of the reading process, which is started on demand and killed if it takes too long."""

    def __init__(self, seconds: float = SECONDS, most_bytes: int = BYTES) -> None:
        self._seconds, self._bytes = seconds, most_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def __call__(self, job: str, *arguments: Any) -> Any:
        """Run the job of that name in the process and return its answer. Raises Unreadable."""
        with self._lock:
            process = self._process = self._process or self._started()
            assert process.stdin is not None
            assert process.stdout is not None
            timer = threading.Timer(self._seconds, process.kill)
            timer.start()
            try:
                process.stdin.write(json.dumps([job, *arguments]).encode() + b"\n")
                process.stdin.flush()
                answer = json.loads(process.stdout.readline())
            except (OSError, ValueError):
                self._process = None
                process.kill()
                process.wait()
                raise Unreadable(f"it could not be read within {self._seconds:.0f} s and the memory allowed") from None
            finally:
                timer.cancel()
        if "error" in answer:
            raise Unreadable(answer["error"])
        return answer["found"]

    def close(self) -> None:
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._process.wait()
                self._process = None

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(self._bytes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )


def brief(folder: str) -> dict[str, Any]:
    return asdict(as_brief(read_run(folder)))


def report(folder: str, name: str, seen: str) -> str:
    run = read_run(folder)
    more = [("answers of every step", pages.rollouts_address(name))] if run.rollout_steps else []
    return render(run, pages.up("", *more), pages.live([name], seen))


def rollouts(folder: str, name: str, query: dict[str, str]) -> str:
    run = read_run(folder)
    return pages.rollouts(name, run, pages.Asked.of(query, run.rollout_steps))


def overlay(folders: dict[str, str], seen: str) -> str:
    return pages.overlay({name: read_run(folder) for name, folder in folders.items()}, seen)


def everything(folder: str) -> dict[str, Any]:
    run = read_run(folder)
    found = {"metrics": run.metrics, "evaluation": run.evaluation, "rollout_steps": run.rollout_steps}
    return finite(found | {"notes": run.notes})


JOBS: dict[str, Callable[..., Any]] = {job.__name__: job for job in (brief, report, rollouts, overlay, everything)}


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until the input ends."""
    for line in requests:
        job, *arguments = json.loads(line)
        try:
            answer = {"found": JOBS[job](*arguments)}
        except Exception as reason:
            answer = {"error": f"its files could not be read ({type(reason).__name__}: {str(reason)[:200]})"}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]), int(sys.argv[1])))
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries that print must not write into the answers
    serve(sys.stdin.buffer, channel)
