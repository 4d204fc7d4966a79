"""A run on several devices: this process starts one process per device, watches them, and restarts a lost job.

    this process     starts the ranks, waits for them, passes on Ctrl-C and SIGTERM, and trains nothing
    rank 0           leads: does what `train` does in a single process
    rank 1 …         follow (followers.py)

`RankHosts` starts the ranks, either on this machine (local_ranks.py) or on the nodes of a cluster.

If a rank is killed, or does not answer another rank in time, the job ends and starts again from its newest checkpoint,
at most `train.restarts` times. If a rank ends with an error of this library, the cause is known and the job does not
restart. PyTorch's own launcher restarts all ranks after any exit code, and knows nothing of checkpoints.
"""

from __future__ import annotations

import json
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from posttrain.config import check_over
from posttrain.config.urls import is_url
from posttrain.errors import ConfigError, DoesNotFit, PosttrainError, RankLost
from posttrain.ranks.environment import place_of_process
from posttrain.shown import shown
from posttrain.stopping import stopped
from posttrain.store.run_store import holds_run
from posttrain.train.hosts import STARTED, RankHosts, RankProcess

if TYPE_CHECKING:
    from posttrain.config import RunConfig
    from posttrain.report.terminal import TerminalView

WATCHED_EVERY = 0.05
GRACE = 10.0
"""Seconds that the other ranks get to end on their own after one has ended."""
SAID = (1, 2, 3, 4, 130, 143)
"""Exit codes after which the job does not restart: errors of any kind, which would recur, and Ctrl-C."""
End = int | str | None
"""How a rank ended; see `RankProcess`."""


def devices_of(config: RunConfig) -> int:
    """Number of ranks that `train.devices` asks for here. Raises ConfigError if there are fewer GPUs."""
    asked, on_cpu = config.train.devices, config.model.device == "cpu"
    if config.cluster is not None and isinstance(asked, int):
        return asked  # the cluster checks whether it has room
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
    """Must this process start ranks? Not if it is a rank. Raises ConfigError for settings that ranks cannot use."""
    if place_of_process() is not None:
        return False
    size = devices_of(config)
    if size > 1 or config.train.devices == "auto":
        check_over(config, size)
    return size > 1


def most_ranks(config: RunConfig, room: int) -> int:
    """The largest number of ranks, up to `room`, that the settings allow. Raises DoesNotFit if they allow none."""
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
    """The ranks of one run, as seen by the process that launches them."""

    config: RunConfig
    place: Path
    """A folder that all ranks see. It holds the settings of the run (`CONFIG`) and the files that a new run gets in its
    folder at the start (`GIVEN`)."""
    folder: Path
    """The folder of the run."""
    size: int
    """Number of ranks."""
    ranks: RankHosts
    restarts: int
    view: TerminalView | None
    resumed: Mapping[str, Any] | None
    """The settings that a resumed run changes; None for a new run."""

    def run(self) -> None:
        """Run the job to its end. Raises the first rank's error, or RankLost after the last restart."""
        reason, resumes = "", self.resumed is not None
        with _Signals.handled(self.folder) as signals:
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
            allowed="ranks that run until the end of training",
            fix=f"`posttrain resume {shown(self.folder)}` continues from the newest checkpoint.",
        )

    def _once(self, resumes: bool, reason: str, signals: _Signals) -> str:
        """Run the job once. Returns an empty string if the run is over, or else the reason to restart.

        If there is less room than before, the job continues with fewer ranks and writes their number into the config.
        """
        room = self.ranks.room(self.size)
        if room < self.size:
            size = most_ranks(self.config, room)
            taken = "" if size == room else f", and the settings allow {size}"
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
            "part": self.view.part if self.view else "",
        }
        file = meeting / "job.json"
        file.write_text(json.dumps(told), encoding="utf-8")
        hear = partial(self._hear, meeting)
        with self.ranks.start(file, self.size) as ranks, signals.passed_to(ranks[0], hear) as passed:
            return self._watch(ranks, passed, meeting)

    def _output(self) -> list[str]:
        """The override of `output`. With a URL there is none: ranks on this machine derive the same working folder."""
        return [] if self.config.output is not None and is_url(self.config.output) else [f"output={self.folder}"]

    def _fewer(self) -> list[str]:
        """The override of `train.devices` if ranks were lost before the run began."""
        return [f"train.devices={self.size}"] if "devices" in (self.resumed or {}) else []

    def _watch(self, ranks: Sequence[RankProcess], passed: Sequence[int], meeting: Path) -> str:
        """Wait until one rank ends, then up to `GRACE` seconds for the others, and return a reason to restart.

        `passed` holds the signals passed on to the first rank. Ranks write their errors into the folder `meeting`."""
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
        if passed and ends[0] in (-passed[-1], 130, 143):  # it ended before or after it could finish a step
            raise _error_of(self.folder, 128 + passed[-1], meeting)
        if said and not _killed(ends):
            raise _error_of(self.folder, int(said[0]), meeting)
        return _reason(ends)

    def _hear(self, meeting: Path, passed: Sequence[int]) -> None:
        """Answer the signals of a user who waits while the ranks start, and end the job at the second."""
        if (meeting / STARTED).exists():
            return  # the first rank answers
        if len(passed) > 1:
            raise stopped(passed[0], _how_far(self.folder))
        self._say("Stopping once the ranks have started. Press Ctrl-C again to stop now.")

    def _say(self, sentence: str) -> None:
        if self.view is not None:
            self.view.event("warning", sentence)


def _is_explained(ends: Sequence[End]) -> bool:
    """Is the reason known without waiting for the ranks that still run? The first rank may end with RankLost shortly
    before this process sees that another rank was killed."""
    return ends[0] not in (None, RankLost.exit_code) or _killed(ends[1:]) or None not in ends


def _killed(ends: Sequence[End]) -> bool:
    """Was a rank killed by a signal, or lost with its machine?"""
    return any(isinstance(end, str) or (end is not None and end < 0) for end in ends)


def _reason(ends: Sequence[End]) -> str:
    """One line about the rank that probably ended first: a killed rank comes before those that waited for it."""
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
    """Passes Ctrl-C and SIGTERM on to the first rank, which finishes its step, saves, and tells the others to end.

    While no rank runs, these signals end the launcher. While ranks start, the second one does."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._first: RankProcess | None = None
        self._passed: list[int] = []
        self._hear: Callable[[Sequence[int]], None] | None = None

    @staticmethod
    @contextmanager
    def handled(folder: Path) -> Iterator[_Signals]:
        """Handle both signals of the run in `folder` until the context ends."""
        signals = _Signals(folder)
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
    def passed_to(self, first: RankProcess, hear: Callable[[Sequence[int]], None]) -> Iterator[list[int]]:
        """Pass signals on to `first`, and then call `hear` with the numbers of the signals received so far, which the
        context gives, too."""
        self._first, self._passed, self._hear = first, [], hear
        try:
            yield self._passed
        finally:
            self._first = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._first is None:
            raise stopped(number, _how_far(self._folder))
        self._passed.append(number)
        self._first.signal(number)
        if self._hear is not None:
            self._hear(self._passed)


def _how_far(folder: Path) -> str:
    """Say what a signal has left of the run, and how to continue it."""
    if not holds_run(folder):
        return f"stopped before anything was trained; you can use {folder} again"
    if any((folder / "checkpoints").glob("step-*/manifest.json")):
        return f"stopped; `posttrain resume {shown(folder)}` continues the run from its newest checkpoint"
    return f"stopped before the first checkpoint; `posttrain resume {shown(folder)}` begins again"


def _error_of(folder: Path, code: int, meeting: Path) -> BaseException:
    """The error that ended the run, from the first rank that has written one."""
    if code in (130, 143):
        return stopped(code - 128, _how_far(folder))
    message = "a rank ended with an error, which it has printed"
    for file in sorted(meeting.glob("error-*.json")):
        with suppress(OSError, ValueError, LookupError):
            message = str(json.loads(file.read_text(encoding="utf-8"))["message"])
            break
    error = PosttrainError(given=message)
    error.exit_code = code
    return error
