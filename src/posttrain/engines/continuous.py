"""A local sampler whose rows come and go at any time, and continue when its weights change."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from torch import Tensor

from posttrain.engines.engine import Draw, Engine, Request, Row
from posttrain.engines.local import LocalSampler
from posttrain.engines.port import Piece, RowName, Task
from posttrain.engines.sampler import Receipt, SamplingSettings, rows_together
from posttrain.engines.sampling import StopStrings, UniformStream


class ContinuousSampler:
    """Decodes tasks one token at a time. Between two tokens, rows may join and leave, and weights may change."""

    def __init__(self, sampler: LocalSampler, sampling: SamplingSettings, *, keep_cache: bool = False) -> None:
        """`keep_cache`: after new weights, rows continue with the keys and values of the old weights. That is fast, but
        only approximate. Otherwise their keys and values are computed again."""
        self.sampler, self.sampling, self.keep_cache = sampler, sampling, keep_cache
        self.stop = StopStrings(sampler.tokenizer, sampling.stop)
        self._call = sampler.begin()
        draw = Draw(sampling, 0, sampler.compute)
        self.engine: Engine = sampler.open(self._call, draw, rows_together(sampling), self.stop)
        self._tasks: dict[int, Task] = {}
        """Tasks by the number of the engine's row."""
        self._told: dict[int, int] = {}
        """Number of tokens of each row that were returned, or came with its task."""
        self._next = 0

    def __bool__(self) -> bool:
        """Return whether there is anything to decode."""
        return bool(self.engine)

    def submit(self, tasks: Iterable[Task]) -> None:
        """Queue tasks: rows of an evaluation before the waiting rows, because the trainer waits for it; others after
        them. The longest rows come first, so that what does not fit fails early."""
        waiting, self.engine.queue = self.engine.queue, deque[Row]()
        tasks = list(tasks)
        self._append(task for task in tasks if task.row[0] < 0)
        self.engine.queue.extend(waiting)
        self._append(task for task in tasks if task.row[0] >= 0)

    def _append(self, tasks: Iterable[Task]) -> None:
        for task in sorted(tasks, key=lambda task: -len(task.prompt_ids) - len(task.drawn_ids)):
            stream = UniformStream(task.seed, *task.stream)
            stream.skip(task.used + len(task.drawn_ids))
            request = Request(
                prompt_ids=task.prompt_ids,
                max_new_tokens=task.max_new_tokens,
                stream=task.stream,
                temperature=task.temperature,
            )
            drawn = len(task.drawn_ids)
            row = Row(
                self._next, request, ids=[*task.drawn_ids], logprobs=[0.0] * drawn, versions=[-1] * drawn,
                uniforms=stream,
            )  # fmt: skip
            self._tasks[row.number], self._told[row.number] = task, drawn
            self.engine.queue.append(row)
            self._next += 1

    def step(self) -> list[Piece]:
        """Sample one token for every row. Return the rows that are found to have ended, with all tokens that were not
        returned yet."""
        with self._call.in_force():
            ended = self.engine.step(self.sampler.device)
        return [self._piece(row) for row in ended]

    def told(self) -> list[Piece]:
        """Return the tokens that rows in flight have sampled since the last call, including every launched step."""
        ended = self.engine.settle()
        rows = [row for row in self.engine.running if row.reason is None and len(row.ids) > self._told[row.number]]
        return [self._piece(row) for row in (*ended, *rows)]

    def interrupt(self, asked: Collection[tuple[RowName, int]]) -> tuple[list[Piece], list[Task]]:
        """Take these rows out. Return their new tokens, and the tasks of those that were found."""
        wanted = set(asked)

        def leaves(row: Row) -> bool:
            task = self._tasks[row.number]
            return (task.row, task.attempt) in wanted

        told = self.told()
        left = self.engine.leave(leaves)
        self._restart()
        return told, [self._forget(row) for row in left]

    def load(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> Receipt:
        """Decode with these weights from the next token on. Call `told` before, for the tokens of the old weights."""
        receipt = self.sampler.overwrite(tensors, version)
        self._call = self.sampler.begin()
        if self.keep_cache:
            self.engine.rows.renew()
        else:
            self._restart()
        return receipt

    def _restart(self) -> None:
        self.engine.restart(self._call.rows(self.engine.max_rows, holds_prompt=True))

    def _forget(self, row: Row) -> Task:
        del self._told[row.number]
        return self._tasks.pop(row.number)

    def _piece(self, row: Row) -> Piece:
        task, told = self._tasks[row.number], self._told[row.number]
        versions = set(row.versions[told:])
        assert len(versions) == 1, "tokens are handed out before new weights are loaded"
        self._told[row.number] = len(row.ids)
        text = None if row.reason is None else self.stop.text(row.ids, stopped=row.reason == "stop")
        if row.reason is not None:
            self._forget(row)
        return Piece(
            row=task.row,
            attempt=task.attempt,
            version=versions.pop(),
            ids=tuple(row.ids[told:]),
            logprobs=tuple(row.logprobs[told:]),
            reason=row.reason,
            text=text,
        )
