"""A run in a separate process: start or continue it, watch it, and read its result, however it ends.

    child = start_child(settings, folder)     `settings` is a config file or a mapping
    child.running, child.stop(), child.wait() -> ChildResult

The child does the same as `posttrain train` or, if the folder holds a run, as `posttrain resume`. It never outlives
this process. Its output goes to `FOLDER.log`. If it fails, `ChildResult.error` holds the error; nothing is raised.
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
"""The module that the child process runs, with the arguments PARENT SETTINGS FOLDER."""
WATCHED_EVERY = 0.5
"""Interval, in seconds, at which a child checks that its parent still runs."""


@dataclass(frozen=True, kw_only=True)
class ChildResult:
    """The end of a run in a separate process."""

    folder: Path
    exit_code: int
    """Exit code of `posttrain train`, or minus the signal that ended it (-9: killed, often for lack of memory)."""
    seconds: float
    """Lifetime of the process, in seconds."""
    error: Mapping[str, Any] | None = None
    """{"type", "message", "exit_code"}; None if the run succeeded, or died without a message."""

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def reason(self) -> str:
        """Return why the run failed, in one line. Empty if it did not fail."""
        if self.ok:
            return ""
        if self.error is not None:
            return f"{self.error.get('type')}: {str(self.error.get('message', '')).splitlines()[0]}"
        if self.exit_code < 0:
            name = signal.Signals(-self.exit_code).name
            hint = " (the kernel does this when memory runs out)" if name == "SIGKILL" else ""
            return f"its process was ended by {name}{hint}"
        return f"its process ended with exit code {self.exit_code}; see the log"


class Child:
    """A run in progress in its own process."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], answer: Path) -> None:
        self.folder, self.process = folder, process
        self._answer, self._started = answer, time.monotonic()

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def ask_to_stop(self) -> None:
        """Ask the run to finish its step and save, as Ctrl-C does."""
        if self.running:
            self.process.terminate()

    def stop(self, *, patience: float = 60.0) -> None:
        """Ask the run to stop, and kill it after `patience` seconds. A second request ends it immediately."""
        self.ask_to_stop()
        self.end(patience)

    def end(self, patience: float) -> None:
        """Wait up to `patience` seconds for the process to end, then kill it."""
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def wait(self) -> ChildResult:
        """Wait until the run ends. An interrupt of this process lets the run save and stop, and is raised again."""
        try:
            code = self.process.wait()
        except BaseException:
            self.stop()
            raise
        seconds = time.monotonic() - self._started
        return ChildResult(folder=self.folder, exit_code=code, seconds=seconds, error=self._error(code))

    def _error(self, code: int) -> Mapping[str, Any] | None:
        """Return the error that the child printed. A killed child prints none; error.json is of an earlier attempt."""
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
    environment: Mapping[str, str] | None = None,
) -> Child:
    """Start a run in `folder`, or continue the run that it holds.

    `settings` are for a new run: a file, or a mapping, which is saved as `FOLDER.yaml`. A continued run reads the
    settings in its folder. `environment` is added to the environment of this process.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(settings, Path):
        written = folder.with_name(f"{folder.name}.yaml")
        write_atomically(written, json.dumps(settings, indent=1))  # JSON is YAML
        settings = written
    log, answer = folder.with_name(f"{folder.name}.log"), folder.with_name(f".{folder.name}.answer.json")
    command = [sys.executable, "-m", CHILD, str(os.getpid()), str(settings), str(folder)]
    with log.open("ab") as errors, answer.open("wb") as said:
        process = subprocess.Popen(
            command,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=errors,
            start_new_session=True,  # only this process gets Ctrl-C; it stops its children itself, once
        )
    return Child(folder, process, answer)
