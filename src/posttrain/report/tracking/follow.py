"""A follower: reads what is added to the files of a run, and tells one tracker.

tracking/NAME.json   what it has sent, so that nothing is sent twice, by whoever goes on
tracking/NAME.lock   held by the one follower that sends, whose process it names
tracking/NAME.log    what the tracker's package printed, where the run itself has started the follower
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
"""Events that a reader should not miss."""
SETTINGS = {"samples", "confidence", "temperature", "top_p", "max_completion_length", "seed", "n"}
"""Entries of an evaluation about how it was made; they are no measurements."""
POLL_SECONDS = 10.0
ROWS = 50
"""After so many it is noted what was sent."""


@dataclass(kw_only=True)
class Sent:
    """The data about a run that a tracker has received so far. `file` holds it."""

    file: Path
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    step: int = -1
    """Metrics up to this one."""
    events: list[str] = field(default_factory=list)
    where: str = ""

    @classmethod
    def of(cls, folder: Path, name: str) -> Sent:
        """As it is on file; a file that cannot be read counts for none."""
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
    """The objects in a file of JSON lines that grows, each once; a resume may put a shorter file in its place."""

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


def follow(folder: Path, name: str, ended: Callable[[], bool] | None = None) -> Sent:
    """Tell the tracker `name` everything that it does not know of the run, until nothing else comes.

    `ended` waits a while and says whether the run is over. Without it the files of the run say so; a run that nobody
    on this machine writes is over at once. A tracker that has nothing to learn is not opened. Raises ConfigError where
    there is no run, or for an unknown tracker; what the tracker's package raises goes through.
    """
    if name not in TRACKERS:
        raise ConfigError(given=f"there is no tracker {name!r}", allowed=", ".join(TRACKERS))
    if not (folder / "config.yaml").is_file():
        raise ConfigError(given=f"{folder} holds no run (it has no config.yaml)", allowed="the folder of a run")
    require_plain(folder)
    (folder / "tracking").mkdir(exist_ok=True)
    with _alone(folder / "tracking" / f"{name}.lock"):
        sent, opened = Sent.of(folder, name), list[Tracker]()

        def tracker() -> Tracker:
            if not opened:
                run = read_run(folder)
                sent.save()  # whoever goes on after a crash goes on with this id
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
        last = over()  # what was written up to here is read once more


def _send_metrics(row: Mapping[str, Any], tracker: Callable[[], Tracker], sent: Sent) -> None:
    step = number(row.get("step"))
    if step is None or step <= sent.step:
        return
    values = {name: value for name in row if name != "step" and (value := number(row[name])) is not None}
    tracker().log(int(step), values)
    sent.step = int(step)


def _send_event(event: Mapping[str, Any], tracker: Callable[[], Tracker], sent: Sent) -> None:
    kind, step, text = str(event.get("kind")), number(event.get("step")), str(event.get("message"))
    when = event.get("time") if kind == "error" else ""  # the same one may end a run again
    if kind not in (*TOLD, "evaluation") or (known := f"{kind} {step} {when} {text}") in sent.events:
        return
    if kind == "evaluation":
        tracker().log(int(step or 0), dict(measurements(mapping(event.get("evaluation")), "eval")))
    else:
        tracker().tell(int(max(sent.step, 0) if step is None else step), kind, text)
    sent.events.append(known)


def measurements(found: Mapping[str, Any], path: str) -> Iterator[tuple[str, float]]:
    """(name, number) of what an evaluation measured, the limits of intervals beside their means.

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
    """One follower sends. Another one waits, and says for whom: that of a run which was killed may still be ending."""
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
