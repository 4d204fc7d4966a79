"""A run on several devices: one process for each, started, watched, and started again when one of them is lost.

    this process     starts the ranks, waits for them, passes on Ctrl-C and SIGTERM, and trains nothing
    rank 0           leads: what `train` is in one process
    rank 1 …         follow (followers.py)

Where ranks are started is a matter of `RankHosts`: on this machine (local_ranks.py), or on the nodes of a cluster.

A rank that is killed, or that another one has waited for in vain, ends the job; from its newest checkpoint it starts
again, `train.restarts` times at most. A rank that ends with an error of this library has said why: then nothing is
tried again. PyTorch's own launcher starts all ranks anew after any exit code, and knows no checkpoint.
"""

from __future__ import annotations

import json
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from posttrain.config import check_over
from posttrain.config.urls import is_url
from posttrain.errors import ConfigError, DoesNotFit, PosttrainError, RankLost
from posttrain.ranks.environment import place_of_process
from posttrain.train.hosts import RankHosts, RankProcess

if TYPE_CHECKING:
    from posttrain.config import RunConfig
    from posttrain.report.terminal import TerminalView

WATCHED_EVERY = 0.05
GRACE = 10.0
"""Seconds that the other ranks have to end by themselves when one has."""
SAID = (1, 2, 3, 4, 130, 143)
"""Exit codes after which another try would end the same way, or is not wanted: errors of all kinds, and Ctrl-C."""
End = int | str | None
"""How a rank ended, see `RankProcess`."""


def devices_of(config: RunConfig) -> int:
    """How many ranks `train.devices` asks for here. Raises ConfigError where there are fewer GPUs."""
    asked, on_cpu = config.train.devices, config.model.device == "cpu"
    if config.cluster is not None and isinstance(asked, int):
        return asked  # the cluster says whether it has room
    cards = 0 if on_cpu else torch.cuda.device_count()
    if asked == "auto":
        return max(1, cards)
    if 0 < cards < asked:
        raise ConfigError(
            given=f"train.devices = {asked}, but there are {cards} GPU(s)",
            allowed=f"1 to {cards}, or auto",
            fix=f"Set train.devices = {cards}, or start the job with torchrun on more machines.",
        )
    return asked


def to_be_launched(config: RunConfig) -> bool:
    """Is this process to start the ranks? Not where it is one of them. Raises ConfigError for what ranks cannot do."""
    if place_of_process() is not None:
        return False
    size = devices_of(config)
    if size > 1 or config.train.devices == "auto":
        check_over(config, size)
    return size > 1


def most_ranks(config: RunConfig, room: int) -> int:
    """The largest number of ranks, up to `room`, that the settings allow. Raises DoesNotFit where they allow none."""
    refusal: ConfigError | None = None
    for size in range(room, 0, -1):
        try:
            check_over(config, size)
        except ConfigError as error:
            refusal = refusal or error
        else:
            return size
    assert refusal is not None, "there is room for one rank at least"
    raise DoesNotFit(
        given=f"there is room for {room} rank(s), but the settings do not allow that number: {refusal.given}",
        allowed=refusal.allowed,
        fix="Add machines, then `posttrain resume RUN`, or change that setting in config.yaml of the run.",
    )


CONFIG, GIVEN = "config.yaml", "given"


@dataclass
class Job:
    """The ranks of one run, as this process sees them."""

    config: RunConfig
    place: Path
    """A folder that all ranks see: in it are the settings of the run (`CONFIG`), and what a new run is to have in its
    folder from the start (`GIVEN`)."""
    folder: Path
    """The folder of the run."""
    size: int
    """Ranks."""
    ranks: RankHosts
    restarts: int
    view: TerminalView | None
    resumed: Mapping[str, Any] | None
    """For a resumed run: the settings that change. None for a new run."""

    def run(self) -> None:
        """Until the run is over. Raises what the first rank raised, or RankLost after the last restart."""
        reason, resumes = "", self.resumed is not None
        with _Signals.handled() as signals:
            for left in range(self.restarts, -1, -1):
                reason = self._once(resumes, reason, signals)
                if not reason:
                    return
                if left:
                    again = f"the job restarts from its newest checkpoint ({left} of {self.restarts} restarts left)"
                    self._say(f"{reason}; {again}")
                    resumes = (self.folder / "config.yaml").is_file()
        raise RankLost(
            given=f"{reason}, after {self.restarts} restarts",
            allowed="ranks that live as long as the run",
            fix=f"`posttrain resume {self.folder}` continues from the newest checkpoint.",
        )

    def _once(self, resumes: bool, reason: str, signals: _Signals) -> str:
        """One life of the job: empty where it is over, else why it has to start again.

        With fewer machines than before it goes on with fewer ranks, and the config of the run says so.
        """
        room = self.ranks.room(self.size)
        if room < self.size:
            size = most_ranks(self.config, room)
            taken = "" if size == room else f", of which the settings allow {size}"
            self._say(f"there is room for {room} of {self.size} ranks{taken}: the job continues with them")
            fewer = f"with {room} of {self.size} ranks left{taken}"
            reason = f"{reason}, {fewer}" if reason else f"it was resumed {fewer}"
            self.size, self.resumed = size, {**(self.resumed or {}), "devices": size}
        meeting = Path(tempfile.mkdtemp(prefix="life-", dir=self.place))
        told = {
            "config": str(self.place / CONFIG),
            "overrides": [*self._output(), *self._fewer()],
            "folder": str(self.folder),
            "given": str(self.place / GIVEN),
            "resumed": (self.resumed or {}) if resumes else None,
            "restarted": reason,
            "quiet": self.view is None or self.view.quiet,
            "show_samples": bool(self.view and self.view.show_samples),
        }
        file = meeting / "job.json"
        file.write_text(json.dumps(told), encoding="utf-8")
        with self.ranks.start(file, self.size) as ranks, signals.passed_to(ranks[0]) as passed:
            return self._watch(ranks, passed, meeting)

    def _output(self) -> list[str]:
        """Ranks of this machine find the working folder of a URL as this process does."""
        return [] if self.config.output is not None and is_url(self.config.output) else [f"output={self.folder}"]

    def _fewer(self) -> list[str]:
        """What a run that has not begun yet is told if ranks were lost before it could."""
        return [f"train.devices={self.size}"] if "devices" in (self.resumed or {}) else []

    def _watch(self, ranks: Sequence[RankProcess], passed: Sequence[int], meeting: Path) -> str:
        """Wait for the first to end, then for the others, but not for ever. `passed` are signals that were asked to
        stop the run; in the folder `meeting` ranks say what ended them."""
        while all(rank.end() is None for rank in ranks):
            time.sleep(WATCHED_EVERY)
        began = time.monotonic()
        while time.monotonic() - began < GRACE and not _is_explained([rank.end() for rank in ranks]):
            time.sleep(WATCHED_EVERY)
        ends = [rank.end() for rank in ranks]
        for rank, end in zip(ranks, ends, strict=True):
            if end is None:
                rank.kill()
        said = [end for end in ends if end in SAID]
        if ends[0] == 0:
            return ""
        if passed and ends[0] in (-passed[-1], 130, 143):  # before it could finish a step, or after
            raise _error_of(self.folder, 128 + passed[-1], meeting)
        if said and not _killed(ends):
            raise _error_of(self.folder, int(said[0]), meeting)
        return _reason(ends)

    def _say(self, sentence: str) -> None:
        if self.view is not None:
            self.view.event("warning", sentence)


def _is_explained(ends: Sequence[End]) -> bool:
    """Is nothing more to be learned from those that have not ended yet? That a rank was killed may be seen a little
    after the first rank has missed it."""
    return ends[0] not in (None, RankLost.exit_code) or _killed(ends[1:]) or None not in ends


def _killed(ends: Sequence[End]) -> bool:
    """Was some rank ended from outside, or lost with its machine?"""
    return any(isinstance(end, str) or (end is not None and end < 0) for end in ends)


def _reason(ends: Sequence[End]) -> str:
    """In one line, of the rank that ended first as far as one can tell: one that was killed did not wait for others."""
    for number, end in enumerate(ends):
        if isinstance(end, str):
            return f"rank {number} was lost: {end}"
        if end is not None and end < 0:
            return f"rank {number} was ended by signal {-end} ({signal.Signals(-end).name})"
    for number, end in enumerate(ends):
        if end not in (None, 0, RankLost.exit_code):
            return f"rank {number} ended with exit code {end}"
    lost = [number for number, end in enumerate(ends) if end == RankLost.exit_code]
    waiting = [number for number, end in enumerate(ends) if end is None]
    silent = f"rank {' and '.join(map(str, waiting))} did not answer" if waiting else "a rank did not answer"
    return f"{silent} rank {lost[0]} within train.rank_deadline" if lost else silent


class _Signals:
    """Ctrl-C and SIGTERM go to the first rank, which finishes its step and saves; it tells the others to end. While
    there is none they end the launcher."""

    def __init__(self) -> None:
        self._first: RankProcess | None = None
        self._passed: list[int] = []

    @staticmethod
    @contextmanager
    def handled() -> Iterator[_Signals]:
        """Until the context ends."""
        signals = _Signals()
        try:
            before = {number: signal.signal(number, signals._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not in the main thread: the caller handles signals
            before = {}
        try:
            yield signals
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def passed_to(self, first: RankProcess) -> Iterator[list[int]]:
        """Gives the numbers of those that came."""
        self._first, self._passed = first, []
        try:
            yield self._passed
        finally:
            self._first = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._first is None:
            raise _stopped("stopped while no rank was running", 128 + number)
        self._passed.append(number)
        self._first.signal(number)


def _stopped(message: str, code: int) -> KeyboardInterrupt:
    stop = KeyboardInterrupt(message)
    vars(stop)["exit_code"] = code
    return stop


def _error_of(folder: Path, code: int, meeting: Path) -> BaseException:
    """What ended the run, as the first rank that knows it has said."""
    if code in (130, 143):
        return _stopped(f"stopped, with a checkpoint; `posttrain resume {folder}` continues the run", code)
    message = "a rank ended with an error and has printed it"
    for file in sorted(meeting.glob("error-*.json")):
        with suppress(OSError, ValueError, LookupError):
            message = str(json.loads(file.read_text(encoding="utf-8"))["message"])
            break
    error = PosttrainError(given=message)
    error.exit_code = code
    return error
