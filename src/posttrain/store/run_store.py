"""Writes the run folder, so that after a kill at any moment it can still be read and resumed.

    config.yaml                   the resolved config
    metrics.jsonl, events.jsonl   one line per step or event, each written by one call; only the last can be cut off
    rollouts/step-000010.parquet  every completion of the step, see `rollout_table`
    judgements/step-000010.jsonl  questions to judges about the step and their answers, if there is a judge
    checkpoints/                  see checkpoint.py
    evaluation.json, error.json   always replaced as a whole
    timeline.json                 activities of engines, rewards and the trainer over time, see timeline.py
    plan.json                     expected memory and time of the run, see planning.py
    compute.json                  how matrix products run, see computing.py
    data.json                     fingerprint of the given rows at the start, see same_data.py
    start.json                    fingerprint of the model at the start, see same_model.py
    rewards.json                  fingerprint of the rewards at the start, see same_rewards.py
    settings.json                 the settings, and the step from which they held, see same_settings.py
    references/                   outputs of the reference model for the given rows, see references.py
    evidence/step-000010.json     the rows that made a loss or a gradient non-finite
    alarms/step-000010-KIND.jsonl the answers that an alarm points to, see alarms/respond.py
    .lock                         locked by the process that writes the run
    .launcher                     locked by the process that has started several ranks, see job_folder.py
    .carried.json                 the files that are behind the URL of the run, see carrier.py

JSON has no NaN and no infinity: a number that is not finite is written as null.
"""

from __future__ import annotations

import fcntl
import io
import json
import math
import os
import re
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import psutil
import pyarrow as pa
import pyarrow.parquet as parquet

from posttrain.errors import ConfigError, DoesNotFit
from posttrain.files import (
    NO_ROOM,
    PATIENCE,
    Damaged,
    Missing,
    append,
    names_inside,
    read_inside,
    read_sealed_json,
    require_plain,
    sync,
    write_atomically,
    write_durably,
    write_sealed,
)
from posttrain.heartbeat import beat
from posttrain.owner import in_words, pid_here, this_process
from posttrain.shown import shown
from posttrain.store.carrier import Carrier
from posttrain.store.timeline import Timeline

EventKind = Literal[
    "start", "compute", "data", "checkpoint", "warning", "guard",
    "alarm", "resume", "evaluation", "publish", "end", "error",
]  # fmt: skip

EVALUATION = "evaluation.json"

_MARKS = ("config.yaml", "metrics.jsonl", "events.jsonl", "checkpoints")
_LASTING = ("error", "guard", "resume")
"""Kinds of events that a resume keeps for every step: they happened, and the repeated steps do not record them."""


class Recorded(Protocol):
    """A record that is stored as a line of JSON."""

    def to_json(self) -> dict[str, Any]: ...


class RunStore:
    """The writer of one run folder; a context manager that holds the folder's lock.

    Make it with `RunStore.create` or `RunStore.open`. Every method raises `DoesNotFit` if the disk is full and
    `ConfigError` if the folder cannot be written.
    """

    def __init__(self, folder: Path, lock: RunLock) -> None:
        self.folder, self._lock = folder, lock
        self.timeline = Timeline()
        """Timeline of a run whose engines are processes; other runs never open it."""
        self.carrier = Carrier(folder)
        """Uploader of a run whose output is a URL; other runs never open it."""
        self._complete: int | None = None
        """The last complete step that this process knows."""

    @classmethod
    def create(cls, folder: Path, config: str) -> RunStore:
        """Start a run in a folder without a run. `config` is the text of its config.

        If a run failed before it began (for example, because of unreadable data), its folder can be used again.
        """
        with _explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
            require_plain(folder)
            lock = RunLock(folder)
            try:
                require_unused(folder)
            except ConfigError:
                lock.release()
                raise
            if never_began(folder):
                for name in ("error.json", "events.jsonl", "config.yaml", "compute.json", "plan.json", "timeline.json"):
                    (folder / name).unlink(missing_ok=True)
                for name in ("tracking", "tensorboard"):  # for a tracker, the next attempt is a new run
                    shutil.rmtree(folder / name, ignore_errors=True)
            for name in ("rollouts", "checkpoints"):
                (folder / name).mkdir(exist_ok=True)
        store = cls(folder, lock)
        store.config(config)
        return store

    @classmethod
    def open(cls, folder: Path, patience: float = 0.0) -> RunStore:
        """Continue to write the run in a folder. Next, call `truncate_after` with the step of the checkpoint.

        `patience`: seconds to wait for another process that writes it to end.
        """
        require_run(folder)
        with _explained(folder):
            require_plain(folder)
            lock = RunLock(folder, patience)
            for name in ("rollouts", "checkpoints"):
                (folder / name).mkdir(exist_ok=True)
        return cls(folder, lock)

    @classmethod
    def aside(cls, folder: Path) -> RunStore:
        """Open an empty folder for results that are computed separately. It is not a run: it has no config.yaml."""
        with _explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise ConfigError(
                    given=f"output = {folder}, which is not empty",
                    allowed="a folder that does not exist yet, or an empty one",
                    fix="Name another folder, or leave output out.",
                )
            return cls(folder, RunLock(folder))

    def __enter__(self) -> RunStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the timeline, and release the URL and the lock."""
        self.timeline.close()
        self.carrier.close(begun=self.has_begun)
        self._lock.release()

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def has_begun(self) -> bool:
        """Was anything measured, trained or saved?"""
        return _has_begun(self.folder)

    def config(self, text: str) -> Path:
        """Write config.yaml."""
        return self._replace("config.yaml", text.encode())

    def metrics(self, step: int, values: Mapping[str, Any]) -> None:
        """Append `{"step": step, **values}` to metrics.jsonl. Raises ConfigError if another process took over."""
        self.carrier.require()
        self._append("metrics.jsonl", {"step": step, **values})
        self._complete = step

    def event(self, kind: EventKind, message: str, *, step: int | None = None, **details: Any) -> None:
        """Append an event to events.jsonl, with the time (UTC) and the details."""
        at = {} if step is None else {"step": step}
        self._append("events.jsonl", {"time": _now(), **at, "kind": kind, "message": message, **details})

    def settle(self) -> None:
        """Make the rows and events so far survive a power failure. A checkpoint needs them and is synced itself.

        Raises OSError with the name of the file. If the disk is full, this waits for a while."""
        for path in (self.folder / "metrics.jsonl", self.folder / "events.jsonl"):
            try:
                PATIENCE.until_written(path, partial(sync, path))
            except FileNotFoundError:
                pass
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(path)) from error

    def samples(self, text: str) -> Path:
        """Write samples.txt."""
        return self._replace("samples.txt", text.encode())

    def rollouts(self, step: int, table: pa.Table) -> Path:
        """Write `rollouts/step-NNNNNN.parquet` atomically."""
        buffer = io.BytesIO()
        parquet.write_table(table, buffer, compression="zstd")
        return self._replace(f"rollouts/step-{step:06d}.parquet", buffer.getvalue())

    def judgements(self, step: int, judgements: Sequence[Recorded]) -> None:
        """Write `judgements/step-NNNNNN.jsonl`, one line per judgement; no file if there are none."""
        if not judgements:
            return
        with _explained(self.folder):
            (self.folder / "judgements").mkdir(exist_ok=True)
        lines = b"".join(_dump(judgement.to_json()) + b"\n" for judgement in judgements)
        self._replace(f"judgements/step-{step:06d}.jsonl", lines)

    def record(self, name: str, content: Mapping[str, Any]) -> Path:
        """Write a file of facts that a resumed run relies on, such as evaluation.json, with a seal: `write_sealed`."""
        with _explained(self.folder):
            write_sealed(self.folder / name, _dump(content, indent=1))
        return self.folder / name

    def read_record(self, name: str) -> dict[str, Any] | None:
        """Read a file of `record`; None if it is missing, as in a run of an earlier version. A damaged file gives a
        warning and None."""
        try:
            found = read_sealed_json(self.folder, name)
        except Missing:
            return None
        except Damaged as damage:
            found, fault = None, str(damage)
        else:
            fault = f"{name} is not a JSON object"
        if isinstance(found, dict):
            return found
        self.event("warning", f"{fault}: cannot check whether it is still the same as at the start", about=name)
        return None

    def plan(self, content: Mapping[str, Any]) -> Path:
        """Write plan.json, without syncing it to disk: nothing depends on it."""
        with _explained(self.folder):
            write_atomically(self.folder / "plan.json", _dump(content, indent=1))
        return self.folder / "plan.json"

    def evidence(self, step: int, rows: Sequence[Mapping[str, Any]]) -> Path:
        """Write `evidence/step-NNNNNN.json`: the rows that stopped the run. Non-finite numbers are written as text."""
        with _explained(self.folder):
            (self.folder / "evidence").mkdir(exist_ok=True)
        return self._replace(f"evidence/step-{step:06d}.json", _dump(list(rows), indent=1, unfinite=str))

    def suspicious(self, step: int, alarm: str, rows: Sequence[Mapping[str, Any]]) -> Path:
        """Write `alarms/step-NNNNNN-ALARM.jsonl`: the answers that an alarm points to, most suspicious first."""
        with _explained(self.folder):
            (self.folder / "alarms").mkdir(exist_ok=True)
        return self._replace(f"alarms/step-{step:06d}-{alarm}.jsonl", b"".join(_dump(row) + b"\n" for row in rows))

    def error(self, error: BaseException) -> Path:
        """Write error.json and the event for it. Its `step` is the last complete step, null if there is none."""
        exit_code = getattr(error, "exit_code", 1)
        kind = type(error).__name__
        self.event("error", f"{kind}: {error}", step=self._complete, exit_code=exit_code)
        content = {
            "type": kind,
            "message": str(error),
            "exit_code": exit_code,
            "step": self._complete,
            "traceback": "".join(traceback.format_exception(error)),
        }
        return self._replace("error.json", _dump(content, indent=1))

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the rows of metrics.jsonl so far, without a line that a kill has cut off."""
        rows = (_parse(line) for line in self._lines("metrics.jsonl"))
        return [row for row in rows if row is not None]

    def read_evaluation(self) -> tuple[dict[str, Any], str]:
        """Return the content of evaluation.json (empty before the first evaluation), and the fault of the file or "".

        If the file is missing or damaged, the baseline comes from events.jsonl, if it is there.
        """
        baseline = self.read_evaluation_of("baseline")
        try:
            found = read_sealed_json(self.folder, EVALUATION)
            if isinstance(found, dict):
                return found, ""
            fault = f"{EVALUATION} is not a JSON object"
        except Missing as missing:  # no fault if the run measures nothing
            fault = "" if baseline is None else str(missing)
        except Damaged as damage:
            fault = str(damage)
        return ({} if baseline is None else {"baseline": baseline}), fault

    def read_evaluation_of(self, name: str) -> dict[str, Any] | None:
        """Return the evaluation in the last event with this name; None if there is none yet."""
        about = [event for event in self.read_events("evaluation") if event.get("message") == name]
        found = about[-1].get("evaluation") if about else None
        return found if isinstance(found, dict) else None

    def read_events(self, kind: EventKind) -> list[dict[str, Any]]:
        """Return the events of a kind so far, without a line that a kill has cut off."""
        events = (_parse(line) for line in self._lines("events.jsonl"))
        return [event for event in events if event is not None and event.get("kind") == kind]

    def truncate_after(self, step: int) -> None:
        """Reset the folder to the state after `step`, and record what was removed.

        Metrics, events, rollouts, judgements, evidence and alarms of later steps are removed, and error.json, because
        the resumed run writes them again. So is a line that a kill has cut off. Errors, guards and resumes are kept.
        """
        with _explained(self.folder):
            rows, cut_rows = self._keep_lines("metrics.jsonl", lambda row: row.get("step", 0) <= step)
            events, cut_events = self._keep_lines(
                "events.jsonl", lambda event: event.get("step", 0) <= step or event.get("kind") in _LASTING
            )
            files = [path for number, path in self._step_files() if number > step]
            for path in (*files, self.folder / "error.json"):
                path.unlink(missing_ok=True)
        dropped = {"metrics": rows, "events": events, "files": len(files), "cut_lines": cut_rows + cut_events}
        counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in dropped.items() if count)
        message = f"resumed after step {step}" + (f"; removed of later steps: {counts}" if counts else "")
        self.event("resume", message, step=step, dropped=dropped)
        self._complete = step

    def _step_files(self) -> Iterator[tuple[int, Path]]:
        """Yield (step, file) for all files that belong to one step."""
        kinds = {"rollouts": "parquet", "judgements": "jsonl", "evidence": "json", "alarms": "jsonl"}
        for name, suffix in kinds.items():
            for file in names_inside(self.folder, name):
                if match := re.fullmatch(rf"step-(\d+)(-[a-z_]+)?\.{suffix}", file):
                    yield int(match[1]), self.folder / name / file

    def _keep_lines(self, name: str, keep: Callable[[dict[str, Any]], bool]) -> tuple[int, int]:
        """Rewrite a file of JSON lines. Returns how many lines were dropped, and how many could not be read."""
        lines = self._lines(name)
        rows = [(line, _parse(line)) for line in lines]
        kept = [line for line, row in rows if row is not None and keep(row)]
        unread = sum(row is None for _, row in rows)
        if len(kept) < len(lines):
            write_durably(self.folder / name, b"".join(kept))
        return len(lines) - len(kept) - unread, unread

    def _lines(self, name: str) -> list[bytes]:
        try:
            return read_inside(self.folder, name, most=sys.maxsize - 1).splitlines(keepends=True)
        except FileNotFoundError:
            return []

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        beat(f"{name} was written")
        with _explained(self.folder):
            append(self.folder / name, _dump(row) + b"\n")

    def _replace(self, name: str, content: bytes) -> Path:
        beat(f"{name} was written")
        with _explained(self.folder):
            write_durably(self.folder / name, content)
        return self.folder / name


ASKED_EVERY = 1.0
"""Seconds between two attempts to get a lock that another process holds."""
SIGNED_WITHIN = 0.2
"""Seconds until a process that has just got a lock has written its name into it."""
ALONE_WITHIN = 1.0
"""Seconds to wait while another process signs or removes a lock, which takes milliseconds. `flock FOLDER posttrain …`
holds the folder for as long as the command runs."""


class RunLock:
    """A lock that keeps two processes from writing the same run.

    The kernel releases the lock (flock) when the process dies, so a kill leaves nothing to clean up. A child that
    outlives the process, such as a reward worker, may still hold it: the lock of a dead process is taken over.
    """

    def __init__(self, folder: Path, patience: float = 0.0, *, name: str = ".lock") -> None:
        self.path = folder / name
        until = time.monotonic() + patience
        while (descriptor := self._acquire(wait=time.monotonic() < until)) is None:
            time.sleep(ASKED_EVERY)
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _acquire(self, wait: bool) -> int | None:
        """Return the descriptor that holds the lock; None if another process holds it and there is time to wait."""
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                given_up = self._is_given_up(descriptor, wait)
                os.close(descriptor)
                if not given_up:
                    return None
            else:
                if self._sign(descriptor):
                    return descriptor
                os.close(descriptor)  # another process has taken it over meanwhile

    def _sign(self, descriptor: int) -> bool:
        """Write this process's name into the lock. Returns false if the lock is no longer that of the folder."""
        with _alone(self.path.parent):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{this_process()}\n".encode(), 0)
            return self._is_current(descriptor)

    def _is_given_up(self, descriptor: int, wait: bool) -> bool:
        """Is the lock, which another process holds, out of the way? That of a dead process is removed.

        Its holder may be the child of a dead owner, or a process that has taken it just now and has yet to sign."""
        owner = _read(descriptor)
        if not _is_dead(owner):
            if wait:
                return False
            raise ConfigError(
                given=f"{self.path.parent} is being written by another process ({in_words(owner)})",
                allowed="one process per run folder",
                fix="Wait until it has ended, or end it. To run at the same time, set output to another folder.",
            )
        time.sleep(SIGNED_WITHIN)
        with _alone(self.path.parent):
            if self._is_current(descriptor) and _read(descriptor) == owner:
                self.path.unlink()
        return True

    def _is_current(self, descriptor: int) -> bool:
        """Is the open file the one that the folder has now?"""
        try:
            now, ours = self.path.lstat(), os.fstat(descriptor)
        except FileNotFoundError:
            return False
        return (now.st_dev, now.st_ino) == (ours.st_dev, ours.st_ino)


def _read(descriptor: int) -> str:
    return os.pread(descriptor, 1000, 0).decode(errors="replace").strip()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process at a time sign or remove a lock of this folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # some network storage cannot lock a folder
            _wait_for(descriptor)
        yield
    finally:
        os.close(descriptor)


def _wait_for(descriptor: int) -> None:
    """Lock an open folder, or leave it after `ALONE_WITHIN` seconds."""
    until = time.monotonic() + ALONE_WITHIN
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return None
        time.sleep(0.01)


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Turn an `OSError` into an error that says how to fix it."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise DoesNotFit(
                given=f"the run cannot be written to {folder}: {error.strerror}",
                allowed="a disk with room for metrics, rollouts and checkpoints",
                fix=f"Free some space, then `posttrain resume {shown(folder)}`; or set output to a folder on "
                "another disk.",
            ) from error
        raise ConfigError(
            given=f"output = {folder}, which cannot be written ({error.strerror or error})",
            allowed="a folder that you may write to",
            fix="Set output to another folder, or change the permissions of this one.",
        ) from error


def _dump(value: Any, indent: int | None = None, unfinite: Callable[[float], Any] = lambda _: None) -> bytes:
    return json.dumps(_plain(value, unfinite), indent=indent, allow_nan=False).encode()


def _plain(value: Any, unfinite: Callable[[float], Any]) -> Any:
    """Convert a value to what JSON can hold: tensors and numpy scalars as numbers, paths as text, no NaN."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item, unfinite) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, unfinite) for item in value]
    if isinstance(value, str | int | None):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else unfinite(value)
    return _plain(value.item(), unfinite) if hasattr(value, "item") else str(value)


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object on a line; None if there is none, or if the line is cut off."""
    try:
        row = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def holds_run(folder: Path) -> bool:
    """Is there a run that can be resumed? A run that failed before it began is started again instead."""
    return (folder / "config.yaml").is_file() and not never_began(folder)


def require_run(folder: Path) -> None:
    """Raise ConfigError for a folder in which no run was started."""
    if not (folder / "config.yaml").is_file():
        raise ConfigError(
            given=f"{folder} holds no run (it has no config.yaml)",
            allowed="the folder of a run that was started before",
            fix="Use the folder that the run printed when it started, or start a run with `posttrain train CONFIG`.",
        )


def require_unused(folder: Path) -> None:
    """Raise ConfigError for a folder that holds a run. A run that never began does not count."""
    if not never_began(folder) and any((folder / mark).exists() for mark in _MARKS):
        raise ConfigError(
            given=f"output = {folder}, which already holds a run",
            allowed="a folder that does not exist yet, or an empty one",
            fix=f"`posttrain resume {shown(folder)}` continues that run; set output to another folder for a new one.",
        )


def never_began(folder: Path) -> bool:
    """Does the folder belong to a run that failed before it measured, trained or saved anything?"""
    return (folder / "error.json").exists() and not _has_begun(folder)


def _has_begun(folder: Path) -> bool:
    marks = (
        "metrics.jsonl",
        "evaluation.json",
        "evaluations",
        "checkpoints/*",
        "rollouts/*",
        "reward_model/*/*",
        "sampled/*",
    )
    return any(found for mark in marks for found in folder.glob(mark))


def _is_dead(owner: str) -> bool:
    """Does `pid 4711 on HOST (12ab34cd)` name a process that has ended? False for another machine or container, where
    nothing is known."""
    pid = pid_here(owner)
    return pid is not None and not psutil.pid_exists(pid)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
