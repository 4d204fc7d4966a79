"""Rows of a local sampler that may join and end while others are decoded, all with the weights as they are now."""

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
    """A sampler of this process: a local sampler, or one that wraps a local sampler."""

    def up_to_date(self) -> LocalSampler:
        """Return the local sampler, with the weights that are in use now."""
        ...


class RowStream(Generic[Name]):
    """Decodes requests that are submitted under a name, and returns each under its name as soon as it has ended.

    The samples depend on the requests and on the order in which they are submitted, never on the clock. If rows
    `stand_alone`, they depend on the requests only.
    """

    def __init__(self, sampler: LocalSampler, sampling: SamplingSettings, *, seed: int) -> None:
        self.sampler, self.sampling, self.seed = sampler, sampling, seed
        self.stop = StopStrings(sampler.tokenizer, sampling.stop)
        self._call = sampler.begin()
        draw = Draw(sampling, seed, sampler.compute)
        self._engine = sampler.open(self._call, draw, rows_together(sampling), self.stop)
        self.stand_alone = stand_alone(self._call, self._engine.rows, draw, sampler.device)
        """Whether a row gets the same bits whatever else is in the batch."""
        self._names: dict[int, Name] = {}
        self._next = 0

    def __len__(self) -> int:
        """Return the number of rows that are decoded or wait for room."""
        return len(self._names)

    def submit(self, name: Name, request: Request, *, drawn: int = 0) -> None:
        """Queue a request after those submitted before. `drawn`: number of tokens for which the request's random stream
        was used before; the stream continues after them.

        Raises the errors of `LocalSampler.generate` for a request that does not fit.
        """
        where = f"prompt {request.stream[0]}"
        check_length(self.sampler, request.prompt_ids, request.max_new_tokens, where=where)
        stream = UniformStream(self.seed, *request.stream)
        stream.skip(drawn)
        self._engine.queue.append(Row(self._next, request, uniforms=stream))
        self._names[self._next] = name
        self._next += 1

    def step(self) -> list[tuple[Name, Completion]]:
        """Sample one token for every row; return the rows that are found to have ended."""
        with self._call.in_force():
            ended = self._engine.step(self.sampler.device)
        return [(self._names.pop(row.number), self.sampler.completion(row, self.stop)) for row in ended]
