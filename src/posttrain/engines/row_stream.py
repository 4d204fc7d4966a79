"""Rows of a local sampler that come and go while others are decoded, all with the weights as they are now."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from posttrain.engines.engine import Draw, Request, Row
from posttrain.engines.local import LocalSampler
from posttrain.engines.sampler import Sampler, SamplingSettings, check_length, rows_together
from posttrain.engines.sampling import StopStrings, UniformStream
from posttrain.engines.standing_alone import stand_alone
from posttrain.types import Completion

Name = TypeVar("Name")


class HasRows(Sampler, Protocol):
    """A sampler of this process: a local one, or what has one."""

    def up_to_date(self) -> LocalSampler:
        """That sampler, with the weights that answer now."""
        ...


class RowStream(Generic[Name]):
    """Requests are submitted under a name, and come back under it as soon as they have ended.

    What is drawn depends on the requests and on the order in which they are submitted, never on the clock; on the
    requests alone where rows `stand_alone`.
    """

    def __init__(self, sampler: LocalSampler, sampling: SamplingSettings, *, seed: int) -> None:
        self.sampler, self.sampling, self.seed = sampler, sampling, seed
        self.stop = StopStrings(sampler.tokenizer, sampling.stop)
        self._call = sampler.begin()
        draw = Draw(sampling, seed, sampler.compute)
        self._engine = sampler.open(self._call, draw, rows_together(sampling), self.stop)
        self.stand_alone = stand_alone(self._call, self._engine.rows, draw, sampler.device)
        """Does a row get the same bits whatever is decoded beside it?"""
        self._names: dict[int, Name] = {}
        self._next = 0

    def __len__(self) -> int:
        """Rows that are decoded, or wait for room."""
        return len(self._names)

    def submit(self, name: Name, request: Request, *, drawn: int = 0) -> None:
        """Begin it behind those that were submitted before. `drawn`: tokens for which the random stream of the request
        was used before; it goes on behind them.

        Raises as `LocalSampler.generate` does for what does not fit.
        """
        where = f"prompt {request.stream[0]}"
        check_length(self.sampler, request.prompt_ids, request.max_new_tokens, where=where)
        stream = UniformStream(self.seed, *request.stream)
        stream.skip(drawn)
        self._engine.queue.append(Row(self._next, request, uniforms=stream))
        self._names[self._next] = name
        self._next += 1

    def step(self) -> list[tuple[Name, Completion]]:
        """Draw one token of every row; those that are found to have ended."""
        with self._call.in_force():
            ended = self._engine.step(self.sampler.device)
        return [(self._names.pop(row.number), self.sampler.completion(row, self.stop)) for row in ended]
