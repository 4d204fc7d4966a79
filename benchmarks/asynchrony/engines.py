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

import torch
from torch import Tensor

from posttrain.config import SamplingConfig
from posttrain.engines.continuous import ContinuousSampler
from posttrain.engines.delivery import DeliveryProof
from posttrain.engines.local import LocalSampler
from posttrain.engines.port import Answer, GivenBack, Piece, Ready, RowName, Task, WeightsLoaded
from posttrain.engines.process import EngineProcess, EngineSetup
from posttrain.engines.published import Published
from posttrain.engines.sampler import Receipt
from posttrain.engines.weights import named_tensors
from posttrain.engines.worker import Worker, main, make
from posttrain.models.compute import dtype_name

PACE = "BENCHMARK_PACE"
"""The variable of the environment that tells a sleeping engine its pace."""
TICK = 0.02
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
    pace: float
    begun: float | None = None
    """When it got a slot."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    told: int = 0
    plan: Piece | None = None
    """The rest of it, as the weights of now draw it."""

    def due(self, now: float) -> bool:
        """Is its next token there?"""
        return self.begun is not None and now >= self.begun + (len(self.ids) + 1) * self.pace

    def advance(self, now: float) -> bool:
        """Take the tokens that are due from the plan; whether the row has ended with them."""
        plan = self.plan
        assert plan is not None
        taken = 0
        while self.due(now) and taken < len(plan.ids):
            self.ids.append(plan.ids[taken])
            self.logprobs.append(plan.logprobs[taken])
            taken += 1
        self.plan = replace(plan, ids=plan.ids[taken:], logprobs=plan.logprobs[taken:])
        return taken == len(plan.ids)

    def piece(self, version: int, *, ended: bool) -> Piece:
        """What was not handed out yet."""
        told, self.told = self.told, len(self.ids)
        return Piece(
            row=self.task.row,
            attempt=self.task.attempt,
            version=version,
            ids=tuple(self.ids[told:]),
            logprobs=tuple(self.logprobs[told:]),
            reason=self.plan.reason if ended and self.plan else None,
            text=self.plan.text if ended and self.plan else None,
        )


class SleepingRows(ContinuousSampler):
    """Hands out each token when it is due, as the weights that are loaded then draw it; between tokens it sleeps.

    The rest of a row is drawn when it is submitted, and drawn anew when weights are loaded. So the tokens are those of
    an engine that draws each one at its time, for a fraction of the work.
    """

    def __init__(self, sampler: LocalSampler, sampling: SamplingConfig, pace: Pace) -> None:
        super().__init__(sampler, sampling)
        self.pace = pace
        self.rows: dict[RowName, _Row] = {}
        """In the order in which they came: the first ones have the slots."""

    def __bool__(self) -> bool:
        return bool(self.rows)

    def submit(self, tasks: Iterable[Task]) -> None:
        self.rows |= {task.row: _Row(task, self.pace.of(task)) for task in tasks}

    def step(self) -> list[Piece]:
        """Sleep for a moment, then hand out the rows whose last token was due."""
        now = time.monotonic()
        for row in list(self.rows.values())[: self.pace.slots]:
            row.begun = row.begun or now
        self._draw([row for row in self.rows.values() if row.plan is None])
        time.sleep(TICK)
        now = time.monotonic()
        ended = [row for row in self.rows.values() if row.advance(now)]
        for row in ended:
            del self.rows[row.task.row]
        return [row.piece(self.sampler.version, ended=True) for row in ended]

    def _draw(self, rows: Sequence[_Row]) -> None:
        super().submit(replace(row.task, drawn_ids=row.task.drawn_ids + tuple(row.ids)) for row in rows)
        while self.engine:
            for piece in super().step():
                self.rows[piece.row].plan = piece

    def told(self) -> list[Piece]:
        version = self.sampler.version
        return [row.piece(version, ended=False) for row in self.rows.values() if len(row.ids) > row.told]

    def interrupt(self, asked: Collection[tuple[RowName, int]]) -> tuple[list[Piece], list[Task]]:
        told, wanted = self.told(), set(asked)
        left = [row.task for row in self.rows.values() if (row.task.row, row.task.attempt) in wanted]
        for task in left:
            del self.rows[task.row]
        return told, left

    def load(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> Receipt:
        for row in self.rows.values():
            row.plan = None
        return super().load(tensors, version)


class SleepingWorker(Worker):
    """Computes with one thread, as the trainer does, in synchronous runs too."""

    def open(self, sampler: LocalSampler, sampling: SamplingConfig, *, keep_cache: bool) -> SleepingRows:
        torch.set_num_threads(1)
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
        self._bell.setblocking(False)  # whoever rings also listens, and is not there while it rings
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

    def push(self) -> bool:
        """Nothing is ever left to send."""
        return False

    def work(self) -> float:
        """It is there at once, and has nothing to start."""
        return time.monotonic()

    def kill(self) -> None:
        self._bell.close()
        self._heard.close()

    def _say(self, *answers: Answer) -> None:
        self._answers += answers
        if answers:
            with suppress(BlockingIOError):
                self._bell.send(b"\0")


if __name__ == "__main__":
    main(SleepingWorker)
