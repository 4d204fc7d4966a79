"""Writing the run folder, so that a kill at any moment leaves something that can be read and resumed.

    config.yaml                   as resolved
    metrics.jsonl, events.jsonl   one line per step or event, each written by one call; only the last can be cut
    rollouts/step-000010.parquet  every completion of the step, see `rollout_table`
    judgements/step-000010.jsonl  what judges were asked about it and said, where there is a judge
    checkpoints/                  see checkpoint.py
    evaluation.json, error.json   replaced as a whole
    timeline.json                 what engines, rewards and the trainer did when, see timeline.py
    plan.json                     what the run was expected to need, see planning.py
    compute.json                  how products run, see computing.py
    data.json                     what the given rows were at the start, see same_data.py
    start.json                    what the model was at the start, see same_model.py
    rewards.json                  what the rewards were at the start, see same_rewards.py
    settings.json                 the settings, and from which step on they held, see same_settings.py
    references/                   what the reference says about them, see references.py
    evidence/step-000010.json     the rows that made a loss or a gradient non-finite
    alarms/step-000010-KIND.jsonl the answers that an alarm points to, see alarms/respond.py
    .lock                         held by the process that writes
    .launcher                     held by the process that has started ranks on a cluster, see job_folder.py
    .carried.json                 which files are behind the URL of the run, see carrier.py

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
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol

import psutil
import pyarrow as pa
import pyarrow.parquet as parquet

from posttrain.errors import ConfigError, DoesNotFit
from posttrain.files import (
    NO_ROOM,
    Damaged,
    Missing,
    append,
    names_inside,
    read_inside,
    read_sealed_json,
    require_plain,
    write_atomically,
    write_durably,
    write_sealed,
)
from posttrain.heartbeat import beat
from posttrain.store.carrier import Carrier
from posttrain.store.timeline import Timeline

EventKind = Literal[
    "start", "compute", "data", "checkpoint", "warning", "guard",
    "alarm", "resume", "evaluation", "publish", "end", "error",
]  # fmt: skip

EVALUATION = "evaluation.json"

_MARKS = ("config.yaml", "metrics.jsonl", "events.jsonl", "checkpoints")
_LASTING = ("error", "guard", "resume")
"""Events that a resume keeps, whatever their step: they happened, and the repeated steps will not tell of them."""


class Recorded(Protocol):
    """Something that is kept as a line of JSON."""

    def to_json(self) -> dict[str, Any]: ...


class RunStore:
    """The writer of one run folder; a context manager that holds the folder's lock.

    Make it with `RunStore.create` or `RunStore.open`. Every method raises `DoesNotFit` when the disk is full and
    `ConfigError` when the folder cannot be written.
    """

    def __init__(self, folder: Path, lock: RunLock) -> None:
        self.folder, self._lock = folder, lock
        self.timeline = Timeline()
        """The timeline of a run whose engines are processes; other runs never open it."""
        self.carrier = Carrier(folder)
        """The carrier of a run whose output is a URL; other runs never open it."""

    @classmethod
    def create(cls, folder: Path, config: str) -> RunStore:
        """Start a run in a folder that holds none, with the text of its config.

        A run that failed before it began (its data could not be read, say) leaves a folder that can be used again.
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
                for name in ("tracking", "tensorboard"):  # to a tracker the next attempt is another run
                    shutil.rmtree(folder / name, ignore_errors=True)
            for name in ("rollouts", "checkpoints"):
                (folder / name).mkdir(exist_ok=True)
        store = cls(folder, lock)
        store.config(config)
        return store

    @classmethod
    def open(cls, folder: Path, patience: float = 0.0) -> RunStore:
        """Go on writing the run that a folder holds; call `truncate_after` with the step of the checkpoint next.

        `patience`: seconds in which another process that writes it may end.
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
        """Results computed beside a run go into a folder of their own. It is not a run: it has no config.yaml."""
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
        """End the timeline, and let go of the URL and the lock."""
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
        """config.yaml."""
        return self._replace("config.yaml", text.encode())

    def metrics(self, step: int, values: Mapping[str, Any]) -> None:
        """One line of metrics.jsonl: `{"step": step, **values}`. ConfigError where the run was taken over elsewhere."""
        self.carrier.require()
        self._append("metrics.jsonl", {"step": step, **values})

    def event(self, kind: EventKind, message: str, *, step: int | None = None, **details: Any) -> None:
        """One line of events.jsonl, with the time (UTC) and whatever details there are."""
        at = {} if step is None else {"step": step}
        self._append("events.jsonl", {"time": _now(), **at, "kind": kind, "message": message, **details})

    def samples(self, text: str) -> Path:
        """samples.txt."""
        return self._replace("samples.txt", text.encode())

    def rollouts(self, step: int, table: pa.Table) -> Path:
        """`rollouts/step-NNNNNN.parquet`: there as a whole, or not at all."""
        buffer = io.BytesIO()
        parquet.write_table(table, buffer, compression="zstd")
        return self._replace(f"rollouts/step-{step:06d}.parquet", buffer.getvalue())

    def judgements(self, step: int, judgements: Sequence[Recorded]) -> None:
        """`judgements/step-NNNNNN.jsonl`, one line per judgement; no file without any."""
        if not judgements:
            return
        with _explained(self.folder):
            (self.folder / "judgements").mkdir(exist_ok=True)
        lines = b"".join(_dump(judgement.to_json()) + b"\n" for judgement in judgements)
        self._replace(f"judgements/step-{step:06d}.jsonl", lines)

    def record(self, name: str, content: Mapping[str, Any]) -> Path:
        """A file of facts that a resumed run relies on, such as evaluation.json: sealed, see `write_sealed`."""
        with _explained(self.folder):
            write_sealed(self.folder / name, _dump(content, indent=1))
        return self.folder / name

    def read_record(self, name: str) -> dict[str, Any] | None:
        """Reads the file of `record`; None if there is none, as in a run of an earlier version. A damaged file is a
        warning."""
        try:
            found = read_sealed_json(self.folder, name)
        except Missing:
            return None
        except Damaged as damage:
            found, fault = None, str(damage)
        else:
            fault = f"{name} is no JSON object"
        if isinstance(found, dict):
            return found
        self.event("warning", f"{fault}: it cannot be checked whether it is still the same as at the start", about=name)
        return None

    def plan(self, content: Mapping[str, Any]) -> Path:
        """plan.json, which nothing depends on: no time is spent on making it survive a loss of power."""
        with _explained(self.folder):
            write_atomically(self.folder / "plan.json", _dump(content, indent=1))
        return self.folder / "plan.json"

    def evidence(self, step: int, rows: Sequence[Mapping[str, Any]]) -> Path:
        """`evidence/step-NNNNNN.json`: the rows that stopped the run. Numbers that are not finite are texts here."""
        with _explained(self.folder):
            (self.folder / "evidence").mkdir(exist_ok=True)
        return self._replace(f"evidence/step-{step:06d}.json", _dump(list(rows), indent=1, unfinite=str))

    def suspicious(self, step: int, alarm: str, rows: Sequence[Mapping[str, Any]]) -> Path:
        """`alarms/step-NNNNNN-ALARM.jsonl`: the answers that an alarm points to, the most suspicious first."""
        with _explained(self.folder):
            (self.folder / "alarms").mkdir(exist_ok=True)
        return self._replace(f"alarms/step-{step:06d}-{alarm}.jsonl", b"".join(_dump(row) + b"\n" for row in rows))

    def error(self, error: BaseException, step: int | None = None) -> Path:
        """error.json, and the event that goes with it."""
        exit_code = getattr(error, "exit_code", 1)
        kind = type(error).__name__
        self.event("error", f"{kind}: {error}", step=step, exit_code=exit_code)
        content = {
            "type": kind,
            "message": str(error),
            "exit_code": exit_code,
            "step": step,
            "traceback": "".join(traceback.format_exception(error)),
        }
        return self._replace("error.json", _dump(content, indent=1))

    def read_metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl so far; a line that was cut by a kill is left out."""
        rows = (_parse(line) for line in self._lines("metrics.jsonl"))
        return [row for row in rows if row is not None]

    def read_evaluation(self) -> tuple[dict[str, Any], str]:
        """The content of evaluation.json, empty before the first evaluation, and what is wrong with the file.

        Of a file that is lost or damaged the baseline is known all the same where events.jsonl tells of it.
        """
        baseline = self.read_evaluation_of("baseline")
        try:
            found = read_sealed_json(self.folder, EVALUATION)
            if isinstance(found, dict):
                return found, ""
            fault = f"{EVALUATION} is no JSON object"
        except Missing as missing:  # as in a run that measures nothing
            fault = "" if baseline is None else str(missing)
        except Damaged as damage:
            fault = str(damage)
        return ({} if baseline is None else {"baseline": baseline}), fault

    def read_evaluation_of(self, name: str) -> dict[str, Any] | None:
        """The last event about the evaluation of this name; None if there was none yet."""
        about = [event for event in self.read_events("evaluation") if event.get("message") == name]
        found = about[-1].get("evaluation") if about else None
        return found if isinstance(found, dict) else None

    def read_events(self, kind: EventKind) -> list[dict[str, Any]]:
        """The events of a kind so far; a line that was cut by a kill is left out."""
        events = (_parse(line) for line in self._lines("events.jsonl"))
        return [event for event in events if event is not None and event.get("kind") == kind]

    def truncate_after(self, step: int) -> None:
        """Make the folder that of a run which has just finished `step`, and record what went.

        Later metrics, events, rollouts, judgements and evidence are removed, and error.json with them, because the
        resumed run writes them again. So is a line that was cut by a kill. Errors, guards and resumes stay on record.
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

    def _step_files(self) -> Iterator[tuple[int, Path]]:
        """(step, file) of all that one step has left in files of its own."""
        kinds = {"rollouts": "parquet", "judgements": "jsonl", "evidence": "json", "alarms": "jsonl"}
        for name, suffix in kinds.items():
            for file in names_inside(self.folder, name):
                if match := re.fullmatch(rf"step-(\d+)(-[a-z_]+)?\.{suffix}", file):
                    yield int(match[1]), self.folder / name / file

    def _keep_lines(self, name: str, keep: Callable[[dict[str, Any]], bool]) -> tuple[int, int]:
        """Rewrite a file of JSON lines; returns how many lines were not kept, and how many could not be read."""
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
"""Seconds between two looks at a lock that another process holds."""


class RunLock:
    """Keeps two processes from writing the same run.

    The kernel holds the lock (flock) and lets go of it when the process dies, so a kill leaves nothing to tidy up. A
    child that outlives it, such as a reward worker, may still hold the lock: that of a dead process is taken over.
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
        """The descriptor that holds the lock; None where another process does, and may still let go of it."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(descriptor, 1000).decode(errors="replace").strip()
            os.close(descriptor)
            if not _is_dead(owner):
                if wait:
                    return None
                raise ConfigError(
                    given=f"{self.path.parent} is being written by another process ({owner or 'unknown'})",
                    allowed="one process per run folder",
                    fix="Wait until it has ended, or end it; to run beside it, set output to another folder.",
                ) from None
            self.path.unlink(missing_ok=True)
            return self._acquire(wait)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        return descriptor


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Turn an `OSError` into the error that says what to do about it."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise DoesNotFit(
                given=f"the run cannot be written to {folder}: {error.strerror}",
                allowed="a disk with room for metrics, rollouts and checkpoints",
                fix=f"Free some space, then `posttrain resume {folder}`; or set output to a folder on another disk.",
            ) from error
        raise ConfigError(
            given=f"output = {folder}, which cannot be written ({error.strerror or error})",
            allowed="a folder that you may write to",
            fix="Set output to another folder, or change the permissions of this one.",
        ) from error


def _dump(value: Any, indent: int | None = None, unfinite: Callable[[float], Any] = lambda _: None) -> bytes:
    return json.dumps(_plain(value, unfinite), indent=indent, allow_nan=False).encode()


def _plain(value: Any, unfinite: Callable[[float], Any]) -> Any:
    """What JSON can hold: tensors and numpy scalars as numbers, paths as text, no NaN."""
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
    """The object on a line; None where there is none, or where its end is missing."""
    try:
        row = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def holds_run(folder: Path) -> bool:
    """Is there a run that can be resumed? One that failed before it began is started anew."""
    return (folder / "config.yaml").is_file() and not never_began(folder)


def require_run(folder: Path) -> None:
    """Raise ConfigError for a folder in which no run was started."""
    if not (folder / "config.yaml").is_file():
        raise ConfigError(
            given=f"{folder} holds no run (it has no config.yaml)",
            allowed="the folder of a run that was started before",
            fix="Name the folder that the run printed when it started, or start one with `posttrain train CONFIG`.",
        )


def require_unused(folder: Path) -> None:
    """Raise ConfigError for a folder that holds a run; one that never began is none."""
    if not never_began(folder) and any((folder / mark).exists() for mark in _MARKS):
        raise ConfigError(
            given=f"output = {folder}, which already holds a run",
            allowed="a folder that does not exist yet, or an empty one",
            fix=f"`posttrain resume {folder}` continues that run; set output to another folder for a new one.",
        )


def never_began(folder: Path) -> bool:
    """Is there what a run has left that failed before it measured, trained or saved anything?"""
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
    """Whether `pid 4711 on HOST` names a process that has ended; of another machine nothing can be said."""
    match = re.fullmatch(r"pid (\d+) on (\S+)", owner)
    return match is not None and match[2] == socket.gethostname() and not psutil.pid_exists(int(match[1]))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
