"""Engines for measurements: one that takes the time of a server and not the cores, and one in the trainer's process.

Both sample from the model as it is trained, through the local sampler, and both are what a run starts in place of an
engine process: see `Fleet.start`.
"""

from __future__ import annotations

import json
import math
import os
import random
import socket
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from posttrain.config import SamplingConfig
from posttrain.engines.continuous import ContinuousSampler
from posttrain.engines.delivery import DeliveryProof
from posttrain.engines.local import LocalSampler
from posttrain.engines.port import Answer, GivenBack, Piece, Ready, RowName, Task, WeightsLoaded
from posttrain.engines.process import EngineProcess, EngineSetup
from posttrain.engines.published import Published
from posttrain.engines.weights import named_tensors
from posttrain.engines.worker import Worker, main, make
from posttrain.models.compute import dtype_name

PACE = "BENCHMARK_PACE"
"""The variable of the environment that tells a sleeping engine its pace."""
TICK = 0.01
"""Seconds between two looks at what is due."""


@dataclass(frozen=True)
class Pace:
    """How a server answers: a token of a row takes its time, whatever the number of rows up to the slots.

    Each token that is drawn stands for a stretch of a long answer. How long the stretches of a row are is log-normal:
    `seconds` for a token on average, times at most `longest`.
    """

    seconds: float
    sigma: float = 1.0
    longest: float = 6.0
    slots: int = 256

    def of(self, task: Task) -> float:
        """Seconds that each token of this row takes: the same in every run of the same seed."""
        drawn = random.Random(f"{task.seed} {task.stream}").gauss(-(self.sigma**2) / 2, self.sigma)
        return self.seconds * min(math.exp(drawn), self.longest)


@dataclass
class _Row:
    task: Task
    due: float
    """When its next token is there."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    told: int = 0

    def piece(self, version: int, ended: Piece | None = None) -> Piece:
        """What was not handed out yet."""
        told, self.told = self.told, len(self.ids)
        return Piece(
            row=self.task.row,
            attempt=self.task.attempt,
            version=version,
            ids=tuple(self.ids[told:]),
            logprobs=tuple(self.logprobs[told:]),
            reason=ended.reason if ended else None,
            text=ended.text if ended else None,
        )


class SleepingRows(ContinuousSampler):
    """Draws each token when it is due, with the weights that are loaded then; between them it sleeps."""

    def __init__(self, sampler: LocalSampler, sampling: SamplingConfig, pace: Pace) -> None:
        super().__init__(sampler, sampling)
        self.pace = pace
        self.waiting: list[Task] = []
        self.running: dict[RowName, _Row] = {}

    def __bool__(self) -> bool:
        return bool(self.waiting or self.running)

    def submit(self, tasks: Iterable[Task]) -> None:
        self.waiting += tasks

    def step(self) -> list[Piece]:
        """Sleep for a moment, then draw a token of every row whose next one is due."""
        time.sleep(TICK)
        free = self.pace.slots - len(self.running)
        begun, self.waiting = self.waiting[:free], self.waiting[free:]
        now = time.monotonic()
        self.running |= {task.row: _Row(task, now + self.pace.of(task)) for task in begun}
        due = [row for row in self.running.values() if row.due <= now]
        return self._draw(due) if due else []

    def _draw(self, due: Sequence[_Row]) -> list[Piece]:
        """One token of each: a task that ends with it."""
        tasks = {row.task.row: row.task.drawn_ids + tuple(row.ids) for row in due}
        super().submit(
            replace(row.task, drawn_ids=tasks[row.task.row], max_new_tokens=len(tasks[row.task.row]) + 1) for row in due
        )
        drawn: list[Piece] = []
        while self.engine:
            drawn += super().step()
        now, ended = time.monotonic(), []
        for piece in drawn:
            row = self.running[piece.row]
            row.ids += piece.ids
            row.logprobs += piece.logprobs
            row.due = now + self.pace.of(row.task)
            if piece.reason == "stop" or len(row.task.drawn_ids) + len(row.ids) >= row.task.max_new_tokens:
                del self.running[piece.row]
                ended.append(row.piece(piece.version, piece))
        return ended

    def told(self) -> list[Piece]:
        version = self.sampler.version
        return [row.piece(version) for row in self.running.values() if len(row.ids) > row.told]

    def interrupt(self, asked: Collection[tuple[RowName, int]]) -> tuple[list[Piece], list[Task]]:
        told, wanted = self.told(), set(asked)
        running = [row.task for row in self.running.values() if (row.task.row, row.task.attempt) in wanted]
        waiting = [task for task in self.waiting if (task.row, task.attempt) in wanted]
        for task in running:
            del self.running[task.row]
        self.waiting = [task for task in self.waiting if (task.row, task.attempt) not in wanted]
        return told, [*running, *waiting]


class SleepingWorker(Worker):
    def open(self, sampler: LocalSampler, sampling: SamplingConfig, *, keep_cache: bool) -> SleepingRows:
        return SleepingRows(sampler, sampling, Pace(**json.loads(os.environ[PACE])))


class SleepingEngine(EngineProcess):
    """An engine process that takes the time of a server and next to nothing of the cores."""

    program: ClassVar[str] = "benchmarks.asynchrony.engines"

    @staticmethod
    def at(pace: Pace) -> type[SleepingEngine]:
        os.environ[PACE] = json.dumps(asdict(pace))
        return SleepingEngine


class InlineEngine:
    """Decodes at once, in the thread of whoever asks: what admission lets in is there before the trainer needs it.

    So every token is as old as `run_ahead` allows, and two runs of the same settings are the same.
    """

    def __init__(
        self,
        name: str,
        setup: EngineSetup,
        files: Sequence[int],
        numbers: Mapping[int, int],
        proof: DeliveryProof,
        log: Path,
    ) -> None:
        self.name, self.files, self.numbers, self.proof = name, files, numbers, proof
        sampler = make(vars(setup))
        self.rows = ContinuousSampler(sampler, SamplingConfig.model_validate(setup.sampling))
        self.held = {n: (dtype_name(x.dtype), tuple(x.shape)) for n, x in named_tensors(sampler.model)}
        self.published: Published | None = None
        self._bell, self._heard = socket.socketpair()
        self._heard.setblocking(False)
        self._answers: list[Answer] = []
        self._say(Ready(tensors=self.held, merged=sampler.owns_weights))

    def fileno(self) -> int:
        return self._heard.fileno()

    def submit(self, tasks: Sequence[Task]) -> None:
        self.rows.submit(tasks)
        while self.rows:
            self._say(*self.rows.step())

    def interrupt(self, rows: Sequence[tuple[RowName, int]]) -> None:
        """Nothing is ever under way."""
        self._say(*(GivenBack(row=row, attempt=attempt) for row, attempt in rows))

    def load(self, version: int) -> None:
        started = time.perf_counter()
        if self.published is None:
            self.published = Published(self.files, self.held, write=False)
        receipt = self.rows.load(self.published.read(self.numbers[version]), version)
        proof = self.proof
        probe = self.rows.sampler.probe(proof.prompt_ids, proof.completion_ids, temperature=proof.temperature)
        seconds = time.perf_counter() - started
        self._say(WeightsLoaded(version=receipt.version, digests=receipt.digests, probe=probe, seconds=seconds))

    def answers(self) -> list[Answer]:
        with suppress(BlockingIOError):
            self._heard.recv(4096)
        found, self._answers = self._answers, []
        return found

    def kill(self) -> None:
        self._bell.close()
        self._heard.close()

    def _say(self, *answers: Answer) -> None:
        self._answers += answers
        if answers:
            self._bell.send(b"\0")


if __name__ == "__main__":
    main(SleepingWorker)
