"""Continuous batching: a queue of requests, a bounded number of rows, and one forward pass per token for all of them.

    queue -> admit -> step -> choose -> record -> leave
               ^                                    |
               +------------ free rows <------------+

A row that ends makes room immediately. The next request joins the rows that continue in the very next pass, so a long
answer delays nobody. When the queue is empty, the remaining rows move together, so that a pass costs only what they
need. The order of operations depends only on the lengths of prompts and completions.

Every token is stamped with the version of the weights that sampled it.

**Lag.** On a GPU, the next pass is launched before the host has seen the ids of the pass before: it reads them on the
device. So a row that has ended is detected one pass late, and the extra token that it sampled is discarded. A row at
its full length is detected by counting, and leaves immediately. Rows that continue sample the same tokens with any lag,
because each row has its own random stream.

B rows in flight, V vocabulary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from posttrain.engines.sampler import SamplingSettings
from posttrain.engines.sampling import StopStrings, UniformStream, choose, is_whole, token_logprobs, uniforms
from posttrain.engines.transfer import Reading, move, to_device
from posttrain.heartbeat import beat
from posttrain.models.acceleration import acceleration
from posttrain.models.compute import PLAIN, Compute
from posttrain.types import FinishReason

PREFILL_TOKENS = 16384
"""Maximum prompt tokens in one pass, including any padding. A longer prompt goes through alone."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One completion of one prompt. Neighbours in a queue that have the same prompt go through the model together."""

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    """At least 1. The completion ends after this many tokens at the latest."""
    stream: tuple[int, int] = (0, 0)
    """`(prompt index, g)`: selects the stream of random numbers."""
    temperature: float | None = None
    """Temperature that replaces the settings'; None: keep theirs."""
    given_ids: tuple[int, ...] = ()
    """`max_new_tokens` tokens to score instead of sampling; empty for sampling."""


@dataclass(slots=True, eq=False)
class Row:
    """A request that is or was being decoded: its tokens so far and, once it has ended, the reason."""

    number: int
    """Index of the request among those that the engine was given."""
    request: Request
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    """The version of the weights that sampled each token."""
    reason: FinishReason | None = None
    uniforms: UniformStream | None = None
    """The source of its random numbers, once one was used."""
    drawn: int = field(init=False)
    """Number of sampled tokens, including those that the host has not read yet."""

    def __post_init__(self) -> None:
        self.drawn = len(self.ids)

    @property
    def is_full(self) -> bool:
        """Whether it has sampled its last allowed token and has not ended before."""
        return self.reason in (None, "length") and self.drawn == self.request.max_new_tokens

    @property
    def text_ids(self) -> tuple[int, ...]:
        """All tokens so far. They go through the model when the row arrives, for the first time or again."""
        return (*self.request.prompt_ids, *self.ids) if self.ids else self.request.prompt_ids


@dataclass(frozen=True)
class Arrival:
    """`count` rows that begin with the same prompt. `more`: further rows of the prompt will follow directly."""

    prompt_ids: Sequence[int]
    count: int
    more: bool


class Rows(Protocol):
    """The keys and values of the rows in flight, and the model that reads and extends them."""

    joins_running: bool
    """Whether new rows may arrive while others are in flight."""

    def step(self, ids_B: Tensor, arrivals: Sequence[Arrival]) -> Tensor:
        """Append one token to every row and add new rows after them; return next-token logits `[B + new, V]`."""
        ...

    def select(self, kept: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        ...

    def renew(self) -> None:
        """Read the weights again after they have changed, and keep the keys and values that the old ones computed."""
        ...

    def worth_leaving(self, num_ended: int, num_rows: int) -> bool:
        """Return whether the ended rows should leave now: their removal costs something, and so does keeping them."""
        ...


class Choose(Protocol):
    """Chooses the next token of every row."""

    def __call__(self, logits_BV: Tensor, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """Return ids and log-probabilities, `[B]` each."""
        ...


@dataclass(frozen=True)
class Draw:
    """Samples with the settings; every row uses its own random stream (`Request.stream`)."""

    settings: SamplingSettings
    seed: int
    compute: Compute = PLAIN

    def __call__(self, logits_BV: Tensor, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """See `Choose`."""
        places = dict[float | None, list[int]]()
        for place, row in enumerate(rows):
            places.setdefault(row.request.temperature, []).append(place)
        if len(places) == 1:
            return self._draw(logits_BV, rows, *places)
        ids_B = torch.empty(len(rows), dtype=torch.long, device=logits_BV.device)
        logprobs_B = torch.empty(len(rows), device=logits_BV.device)
        for temperature, of_it in places.items():
            places_n = to_device(of_it, logits_BV.device)
            found = self._draw(logits_BV[places_n], [rows[place] for place in of_it], temperature)
            ids_B[places_n], logprobs_B[places_n] = found
        return ids_B, logprobs_B

    def _draw(self, logits_BV: Tensor, rows: Sequence[Row], given: float | None = None) -> tuple[Tensor, Tensor]:
        """Sample at one temperature: the settings', or the given one."""
        temperature = self.settings.temperature if given is None else given
        if temperature == 0:
            return choose(logits_BV, self.settings, None, temperature=0)
        uniforms_B2 = move(uniforms([self._stream(row).word() for row in rows]), logits_BV.device)
        draw = acceleration().draw(self.compute, logits_BV) if is_whole(self.settings) else None
        if draw is not None:
            return draw(logits_BV, uniforms_B2, temperature)
        return choose(logits_BV, self.settings, uniforms_B2, temperature=temperature)

    def _stream(self, row: Row) -> UniformStream:
        if row.uniforms is None:
            row.uniforms = UniformStream(self.seed, *row.request.stream)
        return row.uniforms


@dataclass(frozen=True)
class Score:
    """Takes the tokens of `Request.given_ids` instead of sampling, with log-probabilities without truncation."""

    temperature: float

    def __call__(self, logits_BV: Tensor, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """See `Choose`. A row that has ended repeats its last token."""
        given = [row.request.given_ids[min(row.drawn, len(row.request.given_ids) - 1)] for row in rows]
        ids_B = to_device(given, logits_BV.device)
        return ids_B, token_logprobs(logits_BV, ids_B, temperature=self.temperature)


@dataclass(frozen=True, slots=True)
class Flight:
    """A launched pass: its rows, and the tokens that they sampled."""

    rows: Sequence[Row]
    drawn: Reading
    """Ids and log-probabilities, `[B]` each."""
    version: int


class Engine:
    """Decodes rows in the order in which they arrive, up to `max_rows` at a time."""

    def __init__(
        self,
        rows: Rows,
        choose: Choose,
        *,
        max_rows: int,
        eos_ids: Collection[int] = (),
        stop: StopStrings | None = None,
        version: Callable[[], int] = lambda: 0,
        lag: int = 0,
    ) -> None:
        """`version` is called after every pass, for the version of the weights that computed it. `lag`: number of
        passes that are launched before the ids of one are read."""
        self.version = version
        self.lag = lag
        self.rows = rows
        self.choose = choose
        self.max_rows = max_rows
        self.eos_ids = frozenset(eos_ids)
        self.stop = stop
        self.queue: deque[Row] = deque()
        self.running: list[Row] = []
        self._ids_B: Tensor | None = None
        """The last token of each running row; None while there are none."""
        self._flights: deque[Flight] = deque()
        """Passes that were launched and are not read yet."""

    def __bool__(self) -> bool:
        """Return whether there is anything to decode or to read."""
        return bool(self.queue or self.running or self._flights)

    def run(self, requests: Iterable[Request], device: torch.device) -> Iterator[list[Row]]:
        """Yield the rows as they end. Rows that end in the same pass come together, in order of arrival."""
        self.queue.extend(Row(number, request) for number, request in enumerate(requests))
        while self:
            if ended := self.step(device):
                yield ended

    def step(self, device: torch.device) -> list[Row]:
        """Sample one token for every running row, and return the rows that are found to have ended. They leave the
        batch when that is worth it."""
        arrivals = self._admit()
        beat("a token was drawn")
        if not self.running:
            return self.settle()
        self._launch(arrivals, device)
        ended = self._read(self.lag)
        kept = self._kept(self.running)
        if kept is not None:
            self._go_on_with(kept)
        return ended

    def settle(self) -> list[Row]:
        """Read all launched passes; return the rows that are found to have ended."""
        return self._read(0)

    def leave(self, leaving: Callable[[Row], bool]) -> list[Row]:
        """Take out unfinished rows between two tokens, after everything has been read. `restart` must follow, because
        storage may wait for the rest of a group that is gone."""
        assert not self._flights, "launched passes must be read first"
        alive = [*(row for row in self.running if row.reason is None), *self.queue]
        self.queue = deque(row for row in alive if not leaving(row))
        self.running, self._ids_B = [], None
        return [row for row in alive if leaving(row)]

    def restart(self, rows: Rows) -> None:
        """Continue in other storage, which reads other weights, after everything has been read. The tokens of the
        running rows go through the model again."""
        assert not self._flights, "launched passes must be read first"
        self.queue.extendleft(row for row in reversed(self.running) if row.reason is None)
        self.rows, self.running, self._ids_B = rows, [], None

    def _launch(self, arrivals: Sequence[Arrival], device: torch.device) -> None:
        """Compute the next token of every running row, without waiting for the result."""
        ids_B = torch.zeros(0, dtype=torch.long, device=device) if self._ids_B is None else self._ids_B
        logits_BV = self.rows.step(ids_B, arrivals)
        self._ids_B, logprobs_B = self.choose(logits_BV, self.running)
        for row in self.running:
            row.drawn += 1
        self._flights.append(Flight(tuple(self.running), Reading(self._ids_B, logprobs_B), self.version()))

    def _read(self, left: int) -> list[Row]:
        """Wait for all launched passes except the last `left`; return the rows that ended in them."""
        ended = list[Row]()
        while len(self._flights) > left:
            ended += self._record(self._flights.popleft())
        return ended

    def _go_on_with(self, kept: Sequence[int]) -> None:
        self.rows.select(kept)
        self.running = [self.running[i] for i in kept]
        ids_B = self._ids_B if kept else None
        self._ids_B = None if ids_B is None else ids_B[to_device(kept, ids_B.device)]

    def _admit(self) -> list[Arrival]:
        """Move rows from the queue to free places at the end of `running`."""
        queue, running, arrivals = self.queue, self.running, list[Arrival]()
        if running and not self.rows.joins_running:
            return arrivals
        longest = 0
        while queue and len(running) < self.max_rows:
            text_ids = queue[0].text_ids
            longest = max(longest, len(text_ids))
            if arrivals and longest * (len(arrivals) + 1) > PREFILL_TOKENS:
                break
            count = 0
            while queue and len(running) < self.max_rows and queue[0].text_ids == text_ids:
                running.append(queue.popleft())
                count += 1
            arrivals.append(Arrival(text_ids, count, more=bool(queue) and queue[0].text_ids == text_ids))
        return arrivals

    def _record(self, flight: Flight) -> list[Row]:
        """Record the new tokens; return the rows that end with them."""
        going = [row for row in flight.rows if row.reason is None]
        ids, logprobs = flight.drawn.lists()
        for row, token, logprob in zip(flight.rows, ids, logprobs, strict=True):
            if row.reason is None:
                row.ids.append(token)
                row.logprobs.append(logprob)
                row.versions.append(flight.version)
        stopped = self.stop.completed([row.ids for row in going]) if self.stop and going else [False] * len(going)
        for row, by_string in zip(going, stopped, strict=True):
            if row.ids[-1] in self.eos_ids:
                row.reason = "eos"
            elif by_string:
                row.reason = "stop"
            elif len(row.ids) == row.request.max_new_tokens:
                row.reason = "length"
        return [row for row in going if row.reason is not None]

    def _kept(self, running: list[Row]) -> list[int] | None:
        """Return the rows that continue; the last ones fill the gaps of rows that leave. None if none leaves yet.

        A row at its full length leaves immediately, because there may be no position for another token.
        """
        full = [row.is_full for row in running]
        ended = [row.reason is not None or at_length for row, at_length in zip(running, full, strict=True)]
        if not any(full) and not self.rows.worth_leaving(sum(ended), len(ended)):
            return None
        kept = [i for i in range(len(running)) if not ended[i]]
        return close_ranks(kept) if sum(ended) else None


def close_ranks(kept: Sequence[int]) -> list[int]:
    """Return the kept rows in an order in which as many as possible stay where they are.

    >>> close_ranks([0, 2, 3, 5])
    [0, 5, 2, 3]
    """
    places = range(len(kept))
    movers = [i for i in kept if i >= len(kept)]
    staying = set(kept)
    return [i if i in staying else movers.pop() for i in places]
