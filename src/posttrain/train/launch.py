"""A run on several devices: one process for each, started here, watched, and started again when one of them is lost.

    this process     starts the ranks, waits for them, passes on Ctrl-C and SIGTERM, and trains nothing
    rank 0           leads: what `train` is in one process
    rank 1 …         follow (followers.py)

A rank that is killed, or that another one has waited for in vain, ends the job; from its newest checkpoint it starts
again, `train.restarts` times at most. A rank that ends with an error of this library has said why: then nothing is
tried again. PyTorch's own launcher starts all ranks anew after any exit code, and knows no checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from posttrain.config import check
from posttrain.control_groups import cores
from posttrain.errors import ConfigError, PosttrainError, RankLost
from posttrain.ranks.environment import place_of_process

if TYPE_CHECKING:
    from posttrain.config import RunConfig
    from posttrain.report.terminal import TerminalView

WATCHED_EVERY = 0.05
GRACE = 10.0
"""Seconds that the other ranks have to end by themselves when one has."""
SAID = (1, 2, 3, 4, 130, 143)
"""Exit codes after which another try would end the same way, or is not wanted: errors of all kinds, and Ctrl-C."""


def devices_of(config: RunConfig) -> int:
    """How many ranks `train.devices` asks for here. Raises ConfigError where there are fewer GPUs."""
    asked, on_cpu = config.train.devices, config.model.device == "cpu"
    cards = 0 if on_cpu else torch.cuda.device_count()
    if asked == "auto":
        return max(1, cards)
    if 0 < cards < asked:
        raise ConfigError(
            given=f"train.devices = {asked}, and {cards} GPU(s)",
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


def check_over(config: RunConfig, size: int) -> None:
    """Raises ConfigError for what so many ranks cannot do, also where `train.devices` leaves the number open."""
    check(config.model_copy(update={"train": config.train.model_copy(update={"devices": size})}))


@dataclass
class Job:
    """The ranks of one run, as this process sees them."""

    config: Path
    """The settings of the run; of one that is resumed its folder."""
    folder: Path
    size: int
    restarts: int
    view: TerminalView | None
    resumed: Mapping[str, Any] | None
    """Of a run that is resumed: which settings change. None for a new one."""
    given: Path
    """What a new run is to have in its folder from the start."""

    def run(self) -> None:
        """Until the run is over. Raises what the first rank raised, or RankLost after the last restart."""
        reason, resumes = "", self.resumed is not None
        for left in range(self.restarts, -1, -1):
            reason = self._once(resumes, reason)
            if not reason:
                return
            if left:
                self._say(f"{reason}; the job starts again from its newest checkpoint ({left} of {self.restarts} left)")
                resumes = (self.folder / "config.yaml").is_file()
        raise RankLost(
            given=f"{reason}, after {self.restarts} restarts",
            allowed="ranks that live as long as the run",
            fix=f"`posttrain resume {self.folder}` goes on from the newest checkpoint.",
        )

    def _once(self, resumes: bool, reason: str) -> str:
        """One life of the job: empty where it is over, else why it has to start again."""
        with tempfile.TemporaryDirectory(prefix="posttrain-ranks-") as meeting, ExitStack() as started:
            told = {
                "config": str(self.config),
                "folder": str(self.folder),
                "given": str(self.given),
                "resumed": (self.resumed or {}) if resumes else None,
                "restarted": reason,
                "quiet": self.view is None or self.view.quiet,
                "show_samples": bool(self.view and self.view.show_samples),
            }
            file = Path(meeting, "job.json")
            file.write_text(json.dumps(told), encoding="utf-8")
            port = free_port()
            ranks = [started.enter_context(_rank(self, number, file, port)) for number in range(self.size)]
            with _passing_on(ranks[0]) as passed:
                return self._watch(ranks, passed, Path(meeting))

    def _watch(self, ranks: Sequence[subprocess.Popen[bytes]], passed: Sequence[int], meeting: Path) -> str:
        """Wait for the first to end, then for the others, but not for ever. `passed` are signals that were asked to
        stop the run; in the folder `meeting` ranks say what ended them."""
        while all(rank.poll() is None for rank in ranks):
            time.sleep(WATCHED_EVERY)
        if ranks[0].poll() == 0:
            return ""
        began = time.monotonic()
        while ranks[0].poll() is None and time.monotonic() - began < GRACE and not _was_killed(ranks[1:]):
            time.sleep(WATCHED_EVERY)
        codes = [rank.poll() for rank in ranks]
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
        said = [code for code in codes if code in SAID]
        if codes[0] == 0:
            return ""
        if passed and codes[0] in (-passed[-1], 130, 143):  # before it could finish a step, or after
            raise _error_of(self.folder, 128 + passed[-1], meeting)
        if said and not _killed(codes):
            raise _error_of(self.folder, said[0], meeting)
        return _reason(codes)

    def _say(self, sentence: str) -> None:
        if self.view is not None:
            self.view.event("warning", sentence)


def _was_killed(ranks: Sequence[subprocess.Popen[bytes]]) -> bool:
    return _killed([rank.poll() for rank in ranks])


def _killed(codes: Sequence[int | None]) -> bool:
    return any(code is not None and code < 0 for code in codes)


def _reason(codes: Sequence[int | None]) -> str:
    """In one line, of the rank that ended first as far as one can tell: one that was killed did not wait for others."""
    for number, code in enumerate(codes):
        if code is not None and code < 0:
            return f"rank {number} was ended by signal {-code} ({signal.Signals(-code).name})"
    for number, code in enumerate(codes):
        if code not in (None, 0, RankLost.exit_code):
            return f"rank {number} ended with exit code {code}"
    lost = [number for number, code in enumerate(codes) if code == RankLost.exit_code]
    waiting = [number for number, code in enumerate(codes) if code is None]
    silent = f"rank {' and '.join(map(str, waiting))} did not answer" if waiting else "a rank did not answer"
    return f"{silent} rank {lost[0]} within train.rank_deadline" if lost else silent


@contextmanager
def _rank(job: Job, number: int, file: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    environment = dict(os.environ) | {
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(job.size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "POSTTRAIN_PARENT": str(os.getpid()),
    }
    environment.setdefault("OMP_NUM_THREADS", str(max(1, cores() // job.size)))
    process = subprocess.Popen(
        [sys.executable, "-m", "posttrain.train.rank", str(file)],
        env=environment,
        stdout=_file_of(job.view.stream if job.view else None),
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _file_of(stream: Any) -> int | None:
    """Where the first rank is to write, such as stderr where stdout carries JSON; None where that is no file."""
    try:
        return stream.fileno()
    except (AttributeError, OSError, ValueError):
        return None


@contextmanager
def _passing_on(first: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM go to the first rank, which finishes its step and saves; it tells the others to end. Gives
    the numbers of those that came."""
    passed: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        passed.append(number)
        with suppress(ProcessLookupError):
            first.send_signal(number)

    try:
        before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: the caller handles signals
        before = {}
    try:
        yield passed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def free_port() -> int:
    """One on which nobody listens now, below those that connections take by themselves."""
    import random
    import socket

    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


def _error_of(folder: Path, code: int, meeting: Path) -> BaseException:
    """What ended the run, as the first rank that knows it has said."""
    if code in (130, 143):
        stop = KeyboardInterrupt(f"stopped, with a checkpoint; `posttrain resume {folder}` goes on")
        vars(stop)["exit_code"] = code
        return stop
    message = "a rank has ended with an error, which it has printed"
    for file in sorted(meeting.glob("error-*.json")):
        with suppress(OSError, ValueError, LookupError):
            message = str(json.loads(file.read_text(encoding="utf-8"))["message"])
            break
    error = PosttrainError(given=message)
    error.exit_code = code
    return error
