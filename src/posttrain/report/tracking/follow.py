"""A follower: reads new lines in the files of a run, and sends them to one tracker.

tracking/NAME.json   what was sent so far, so that the next follower sends nothing twice
tracking/NAME.lock   lock of the one follower that may send; holds its process id
tracking/NAME.log    output of the tracker's package, if the run itself started the follower
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from posttrain.errors import ConfigError
from posttrain.files import MOST_BYTES, open_inside, require_plain, write_atomically
from posttrain.report.store import mapping, number, read_run, state_of
from posttrain.report.tracking.trackers import TRACKERS, Subject, Tracker

TOLD = ("alarm", "guard", "error")
"""Kinds of events that are sent as alerts."""
SETTINGS = {"samples", "confidence", "temperature", "top_p", "max_completion_length", "seed", "n"}
"""Keys of an evaluation that are settings and not measurements."""
POLL_SECONDS = 10.0
NAMED = 5
"""Number of runs that an error names."""
ROWS = 50
"""Number of rows after which the state of sending is saved."""


@dataclass(kw_only=True)
class Sent:
    """Record of what a tracker has received of a run so far. It is stored in `file`."""

    file: Path
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    step: int = -1
    """Last step whose metrics were sent; -1: none."""
    events: list[str] = field(default_factory=list)
    where: str = ""

    @classmethod
    def of(cls, folder: Path, name: str) -> Sent:
        """Read the record from its file. If it is missing or unreadable, nothing counts as sent."""
        file = folder / "tracking" / f"{name}.json"
        try:
            found = mapping(json.loads(file.read_text(encoding="utf-8")))
            events, where = list(map(str, found["events"])), str(found.get("where", ""))
            return cls(file=file, id=str(found["id"]), step=int(found["step"]), events=events, where=where)
        except (OSError, ValueError, KeyError, TypeError):
            return cls(file=file)

    def save(self) -> None:
        content = {name: value for name, value in asdict(self).items() if name != "file"}
        write_atomically(self.file, json.dumps(content, indent=1))


class Lines:
    """Reader of a growing file of JSON lines. It returns each object once. A resume may replace the file by a shorter
    one; it is then read from the start."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name, self._offset, self._file = folder, name, 0, 0

    def new(self) -> Iterator[Mapping[str, Any]]:
        try:
            with os.fdopen(open_inside(self._folder, self._name), "rb") as file:
                now = os.fstat(file.fileno())
                if now.st_ino != self._file or now.st_size < self._offset:
                    self._file, self._offset = now.st_ino, 0
                file.seek(self._offset)
                whole, end, _ = file.read(MOST_BYTES).rpartition(b"\n")  # the last line may still be written
        except FileNotFoundError:
            return
        self._offset += len(whole) + len(end)
        for line in whole.splitlines():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, Mapping):
                yield row


def _holds_no_run(folder: Path) -> ConfigError:
    """The error for a folder without a run. It names the runs one level below, such as the stages of a pipeline."""
    inside = [str(config.parent) for config in sorted(folder.glob("*/config.yaml"))]
    named = " or ".join([*inside[:NAMED], *(["another run in it"] if len(inside) > NAMED else [])])
    is_pipeline = (folder / "pipeline.json").is_file()
    return ConfigError(
        given=f"{folder} {'is the folder of a pipeline' if is_pipeline else 'holds no run (it has no config.yaml)'}",
        allowed="the folder of a run, or of one stage of a pipeline",
        fix=f"Name {named}." if named else "Name the folder that the run printed when it started.",
    )


def follow(folder: Path, name: str, ended: Callable[[], bool] | None = None) -> Sent:
    """Send the tracker `name` everything that it does not have yet of the run, until the run is over.

    `ended` waits a while and says whether the run is over. By default the files of the run say so, and a run that no
    process of this machine writes is over immediately. If there is nothing to send, the tracker is not opened. Raises
    ConfigError if there is no run, or for an unknown tracker. Errors of the tracker's package are not caught.
    """
    if name not in TRACKERS:
        raise ConfigError(given=f"there is no tracker {name!r}", allowed=", ".join(TRACKERS))
    if not (folder / "config.yaml").is_file():
        raise _holds_no_run(folder)
    require_plain(folder)
    (folder / "tracking").mkdir(exist_ok=True)
    with _alone(folder / "tracking" / f"{name}.lock"):
        sent, opened = Sent.of(folder, name), list[Tracker]()

        def tracker() -> Tracker:
            if not opened:
                run = read_run(folder)
                sent.save()  # after a crash, the next follower uses the same id
                subject = Subject(folder=folder, config=run.config, config_text=run.config_text, id=sent.id)
                opened.append(TRACKERS[name](subject))
                sent.where = opened[0].where
            return opened[0]

        try:
            _send_until(ended or (lambda: _is_over(folder)), folder, tracker, sent)
        finally:
            sent.save()
            if opened:
                opened[0].close(failed=read_run(folder).status != "finished")
    return sent


def _send_until(over: Callable[[], bool], folder: Path, tracker: Callable[[], Tracker], sent: Sent) -> None:
    metrics, events = Lines(folder, "metrics.jsonl"), Lines(folder, "events.jsonl")
    last = False
    while True:
        for count, row in enumerate(metrics.new(), start=1):
            _send_metrics(row, tracker, sent)
            if count % ROWS == 0:
                sent.save()
        for event in events.new():
            _send_event(event, tracker, sent)
        sent.save()
        if last:
            return
        last = over()  # then read once more: the run may have written before it ended


def _send_metrics(row: Mapping[str, Any], tracker: Callable[[], Tracker], sent: Sent) -> None:
    step = number(row.get("step"))
    if step is None or step <= sent.step:
        return
    values = {name: value for name in row if name != "step" and (value := number(row[name])) is not None}
    tracker().log(int(step), values)
    sent.step = int(step)


def _send_event(event: Mapping[str, Any], tracker: Callable[[], Tracker], sent: Sent) -> None:
    kind, step, text = str(event.get("kind")), number(event.get("step")), str(event.get("message"))
    when = event.get("time") if kind == "error" else ""  # the same error may end a resumed run again
    if kind not in (*TOLD, "evaluation") or (known := f"{kind} {step} {when} {text}") in sent.events:
        return
    if kind == "evaluation":
        tracker().log(int(step or 0), dict(measurements(mapping(event.get("evaluation")), "eval")))
    else:
        tracker().tell(int(max(sent.step, 0) if step is None else step), kind, text)
    sent.events.append(known)


def measurements(found: Mapping[str, Any], path: str) -> Iterator[tuple[str, float]]:
    """Yield (name, number) of the measurements of an evaluation: means and the limits of their intervals.

    >>> dict(measurements({"seed": 7, "greedy": {"accuracy": {"mean": 0.5, "low": 0.2, "high": 0.8, "n": 8}}}, "eval"))
    {'eval/greedy/accuracy': 0.5, 'eval/greedy/accuracy/low': 0.2, 'eval/greedy/accuracy/high': 0.8}
    """
    for name, value in found.items():
        if isinstance(value, Mapping):
            yield from measurements(value, f"{path}/{name}")
        elif name not in SETTINGS and (known := number(value)) is not None:
            yield path if name == "mean" else f"{path}/{name}", known


def _is_over(folder: Path) -> bool:
    if state_of(folder, read_run(folder).status) != "running":
        return True
    time.sleep(POLL_SECONDS)
    return False


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Let only one follower send at a time. A second one prints which process it waits for: for example, the follower
    of a killed run that is still finishing."""
    with lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = lock.read_text(encoding="utf-8").strip()
            told = f"waiting for process {holder}, which is still sending to {lock.stem}; `kill {holder}` ends it"
            print(told, file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
