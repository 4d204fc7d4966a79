"""Engines for measurements: one that takes the time of a server but hardly uses the cores, and one inside the trainer's
process.

Both sample from the trained model with the local sampler. A run starts them instead of an engine process: see
`Fleet.start`.
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
from posttrain.engines.delivery import DeliveryProof, digests_of
from posttrain.engines.local import LocalSampler
from posttrain.engines.port import Answer, GivenBack, Piece, Ready, RowName, Task, WeightsLoaded
from posttrain.engines.process import EngineProcess, EngineSetup
from posttrain.engines.published import Published
from posttrain.engines.sampler import Receipt
from posttrain.engines.weights import named_tensors
from posttrain.engines.worker import Worker, main, make
from posttrain.models.compute import dtype_name

PACE = "BENCHMARK_PACE"
"""The environment variable that tells a sleeping engine its pace."""
TICK = 0.02
"""Time between two checks for due tokens, in seconds."""


@dataclass(frozen=True)
class Pace:
    """The speed of a simulated server. A token takes a fixed time, however many rows there are, up to the slots.

    Each sampled token stands for a part of a long answer. The time for a token differs between rows with a log-normal
    distribution: on average it is `seconds`, and at most `longest` times that.
    """

    seconds: float
    sigma: float = 1.0
    longest: float = 6.0
    slots: int = 256

    def of(self, task: Task) -> float:
        """Time for each token of this row, in seconds. It is the same in every run with the same seed."""
        drawn = random.Random(f"{task.seed} {task.stream}").gauss(-(self.sigma**2) / 2, self.sigma)
        return self.seconds * min(math.exp(drawn), self.longest)


@dataclass
class _Row:
    task: Task
    pace: float
    begun: float | None = None
    """Time when the row got a slot."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    told: int = 0
    plan: Piece | None = None
    """The rest of the row, sampled with the current weights."""

    def due(self, now: float) -> bool:
        """Whether the next token of the row is due."""
        return self.begun is not None and now >= self.begun + (len(self.ids) + 1) * self.pace

    def advance(self, now: float) -> bool:
        """Take the due tokens from the plan, and return whether the row has ended with them."""
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
        """The part of the row that was not handed out yet."""
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
    """A sampler that hands out each token when it is due, sampled with the weights that are loaded then, and sleeps
    between tokens.

    The rest of a row is sampled when the row is submitted, and again whenever weights are loaded. So the tokens are the
    same as if each one were sampled when it is due, for a fraction of the work.
    """

    def __init__(self, sampler: LocalSampler, sampling: SamplingConfig, pace: Pace) -> None:
        super().__init__(sampler, sampling)
        self.pace = pace
        self.rows: dict[RowName, _Row] = {}
        """The rows in the order of their arrival. The first ones have the slots."""

    def __bool__(self) -> bool:
        return bool(self.rows)

    def submit(self, tasks: Iterable[Task]) -> None:
        self.rows |= {task.row: _Row(task, self.pace.of(task)) for task in tasks}

    def step(self) -> list[Piece]:
        """Sleep for one tick, then hand out the rows whose last token is due."""
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
    """A worker that computes with one thread, as the trainer does, in synchronous runs too."""

    def open(self, sampler: LocalSampler, sampling: SamplingConfig, *, keep_cache: bool) -> SleepingRows:
        torch.set_num_threads(1)
        return SleepingRows(sampler, sampling, Pace(**json.loads(os.environ[PACE])))


class SleepingEngine(EngineProcess):
    """An engine process that takes the time of a server but hardly uses the cores."""

    program: ClassVar[str] = "benchmarks.asynchrony.engines"

    @staticmethod
    def at(pace: Pace) -> type[SleepingEngine]:
        os.environ[PACE] = json.dumps(asdict(pace))
        return SleepingEngine


class InlineEngine:
    """An engine that decodes immediately, in the caller's thread. Admitted rows are done before the trainer needs them.

    So every token is as old as `run_ahead` allows, and two runs with the same settings are identical.
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
        self._bell.setblocking(False)  # the same thread sends and receives: a blocking send would never end
        self._answers: list[Answer] = []
        self._say(Ready(tensors=self.held, merged=sampler.owns_weights))

    def fileno(self) -> int:
        return self._heard.fileno()

    def submit(self, tasks: Sequence[Task]) -> None:
        self.rows.submit(tasks)
        while self.rows:
            self._say(*self.rows.step())

    def interrupt(self, rows: Sequence[tuple[RowName, int]]) -> None:
        """Give the rows back. No row is ever in progress, because `submit` decodes immediately."""
        self._say(*(GivenBack(row=row, attempt=attempt) for row, attempt in rows))

    def load(self, version: int) -> None:
        started = time.perf_counter()
        if self.published is None:
            self.published = Published(self.files, self.held, write=False)
        receipt = self.rows.load(self.published.read(self.numbers[version]), version)
        digests, proof = digests_of(receipt), self.proof
        probe = self.rows.sampler.probe(proof.prompt_ids, proof.completion_ids, temperature=proof.temperature)
        seconds = time.perf_counter() - started
        self._say(WeightsLoaded(version=receipt.version, digests=digests, probe=probe, seconds=seconds))

    def answers(self) -> list[Answer]:
        with suppress(BlockingIOError):
            self._heard.recv(4096)
        found, self._answers = self._answers, []
        return found

    def push(self) -> bool:
        """Return False: nothing is ever left to send."""
        return False

    def work(self) -> float:
        """Return the time as progress: the engine is always ready."""
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
