"""A run in a process of its own: started or gone on with, watched, and read back, whatever became of it.

    child = start_child(settings, folder)     `settings` is a config file, or the settings themselves
    child.running, child.stop(), child.wait() -> ChildResult

The child does what `posttrain train` or, where the folder holds a run, `posttrain resume` do. It never outlives this
process. What it says goes to `FOLDER.log`, and what it failed of is in `ChildResult.error`; nothing is raised for that.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.files import write_atomically

CHILD = "posttrain.cli.child"
"""The module that its process runs, with the arguments PARENT SETTINGS FOLDER [STEPS]."""
WATCHED_EVERY = 0.5
"""Seconds between two looks of a child for whoever started it."""


@dataclass(frozen=True, kw_only=True)
class ChildResult:
    """How a run in a process of its own ended."""

    folder: Path
    exit_code: int
    """That of `posttrain train`; negative: ended by this signal (-9: killed, as the kernel does when memory is out)."""
    seconds: float
    """That the process lived."""
    error: Mapping[str, Any] | None = None
    """{"type", "message", "exit_code"}; None where the run ended well, or said nothing before it died."""

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def reason(self) -> str:
        """Why it failed, in one line; empty where it did not."""
        if self.ok:
            return ""
        if self.error is not None:
            return f"{self.error.get('type')}: {str(self.error.get('message', '')).splitlines()[0]}"
        if self.exit_code < 0:
            name = signal.Signals(-self.exit_code).name
            hint = " (the kernel does so when memory is out)" if name == "SIGKILL" else ""
            return f"its process was ended by {name}{hint}"
        return f"its process ended with exit code {self.exit_code}; see the log"


class Child:
    """A run at work in its own process."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], answer: Path) -> None:
        self.folder, self.process = folder, process
        self._answer, self._started = answer, time.monotonic()

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def ask_to_stop(self) -> None:
        """Let it finish its step and save, as Ctrl-C does."""
        if self.running:
            self.process.terminate()

    def stop(self, *, patience: float = 60.0) -> None:
        """Ask it to, and kill it where it has not ended after `patience` seconds. Asked twice, it ends at once."""
        self.ask_to_stop()
        self.end(patience)

    def end(self, patience: float) -> None:
        """Wait so long, then kill."""
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def wait(self) -> ChildResult:
        """Until it has ended. An interrupt of this process is passed on, so that the run is saved, and raised again."""
        try:
            code = self.process.wait()
        except BaseException:
            self.stop()
            raise
        seconds = time.monotonic() - self._started
        return ChildResult(folder=self.folder, exit_code=code, seconds=seconds, error=self._error(code))

    def _error(self, code: int) -> Mapping[str, Any] | None:
        """What the child printed; a child that was killed printed nothing, and error.json is of an earlier attempt."""
        try:
            found = json.loads(self._answer.read_bytes())
        except (OSError, ValueError):
            found = None
        self._answer.unlink(missing_ok=True)
        error = found.get("error") if isinstance(found, dict) else None
        return error if code > 0 and isinstance(error, dict) else None


def start_child(
    settings: Path | Mapping[str, Any],
    folder: Path,
    *,
    steps: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Child:
    """Start the run of `folder`, or go on with the one that it holds, up to `steps` if that is given.

    `settings` are those of a new run: a file, or a mapping, which is kept as `FOLDER.yaml`. A run that is gone on with
    has its own in its folder. `environment` is added to that of this process.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(settings, Path):
        written = folder.with_name(f"{folder.name}.yaml")
        write_atomically(written, json.dumps(settings, indent=1))  # JSON is YAML
        settings = written
    log, answer = folder.with_name(f"{folder.name}.log"), folder.with_name(f".{folder.name}.answer.json")
    limit = [] if steps is None else [str(steps)]
    command = [sys.executable, "-m", CHILD, str(os.getpid()), str(settings), str(folder), *limit]
    with log.open("ab") as errors, answer.open("wb") as said:
        process = subprocess.Popen(
            command,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=errors,
            start_new_session=True,  # a Ctrl-C is for this process, which stops its children itself, and once
        )
    return Child(folder, process, answer)
