"""Continuous batching: a queue of requests, a bounded number of rows, and one forward pass per token of all of them.

    queue -> admit -> step -> choose -> record -> leave
               ^                                    |
               +------------ free rows <------------+

A row that ends makes room at once, and the next request takes it in the very next pass, beside the rows that go on: a
long answer holds up nobody. When the queue is empty the rows that are left move together, so that a pass costs what
they cost. What is done in which order depends on the lengths of prompts and completions alone.

B rows in flight, V vocabulary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from posttrain.engines.requests import Arrival, Request, Row
from posttrain.engines.stop import StopStrings

PREFILL_TOKENS = 16384
"""Prompt tokens that go through the model in one pass, padding included where there is some; one longer prompt does."""


class Rows(Protocol):
    """The keys and values of the rows in flight, and the model that reads and extends them."""

    joins_running: bool
    """Whether new rows may arrive while others are in flight."""

    def step(self, ids_B: Tensor, arrivals: Sequence[Arrival]) -> Tensor:
        """Append one token to every row and let new rows arrive behind them: logits `[B + new, V]` of what follows."""
        ...

    def select(self, kept: Sequence[int]) -> None:
        """Go on with these rows, in this order."""
        ...

    def worth_leaving(self, num_ended: int, num_rows: int) -> bool:
        """Whether the ended rows should leave now, given what it costs to go on without them and with them."""
        ...


class Choose(Protocol):
    """Decides on the next token of every row."""

    def __call__(self, logits_BV: Tensor, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """Ids and log-probabilities, `[B]` each."""
        ...


class Engine:
    """Decodes requests in the order in which they come, up to `max_rows` at a time."""

    def __init__(
        self,
        rows: Rows,
        choose: Choose,
        *,
        max_rows: int,
        eos_ids: Collection[int] = (),
        stop: StopStrings | None = None,
    ) -> None:
        self.rows = rows
        self.choose = choose
        self.max_rows = max_rows
        self.eos_ids = frozenset(eos_ids)
        self.stop = stop

    def run(self, requests: Iterable[Request], device: torch.device) -> Iterator[list[Row]]:
        """The rows as they end: those that end in the same pass together, in the order of their requests' arrival."""
        queue = deque(Row(number, request) for number, request in enumerate(requests))
        running: list[Row] = []
        ids_B = torch.zeros(0, dtype=torch.long, device=device)
        while queue or running:
            arrivals = self._admit(queue, running)
            logits_BV = self.rows.step(ids_B, arrivals)
            ids_B, logprobs_B = self.choose(logits_BV, running)
            if ended := self._record(running, ids_B.tolist(), logprobs_B.tolist()):
                yield ended
            kept = self._kept(running)
            if kept is not None:
                self.rows.select(kept)
                running = [running[i] for i in kept]
                ids_B = ids_B[kept]

    def _admit(self, queue: deque[Row], running: list[Row]) -> list[Arrival]:
        """Move requests from the queue to the free rows, at the end of `running`."""
        arrivals: list[Arrival] = []
        if running and not self.rows.joins_running:
            return arrivals
        longest = 0
        while queue and len(running) < self.max_rows:
            prompt_ids = queue[0].request.prompt_ids
            longest = max(longest, len(prompt_ids))
            if arrivals and longest * (len(arrivals) + 1) > PREFILL_TOKENS:
                break
            count = 0
            while queue and len(running) < self.max_rows and queue[0].request.prompt_ids == prompt_ids:
                running.append(queue.popleft())
                count += 1
            arrivals.append(Arrival(prompt_ids, count, more=bool(queue) and queue[0].request.prompt_ids == prompt_ids))
        return arrivals

    def _record(self, running: list[Row], ids: list[int], logprobs: list[float]) -> list[Row]:
        """Write the new tokens down; the rows that end with them."""
        going = [row for row in running if row.reason is None]
        for row, token, logprob in zip(running, ids, logprobs, strict=True):
            if row.reason is None:
                row.ids.append(token)
                row.logprobs.append(logprob)
        stopped = self.stop.completed([row.ids for row in going]) if self.stop else [False] * len(going)
        for row, by_string in zip(going, stopped, strict=True):
            if row.ids[-1] in self.eos_ids:
                row.reason = "eos"
            elif by_string:
                row.reason = "stop"
            elif len(row.ids) == row.request.max_new_tokens:
                row.reason = "length"
        return [row for row in going if row.reason is not None]

    def _kept(self, running: list[Row]) -> list[int] | None:
        """Which rows go on, those behind filling the places of those that leave; None when nobody leaves yet.

        A row at its full length leaves at once: there may be no position for a further token.
        """
        ended = [row.reason is not None for row in running]
        if not any(row.reason == "length" for row in running) and not self.rows.worth_leaving(sum(ended), len(ended)):
            return None
        kept = [i for i in range(len(running)) if not ended[i]]
        return close_ranks(kept) if sum(ended) else None


def close_ranks(kept: Sequence[int]) -> list[int]:
    """The kept rows in an order in which as many as possible stay where they are.

    >>> close_ranks([0, 2, 3, 5])
    [0, 5, 2, 3]
    """
    places = range(len(kept))
    movers = [i for i in kept if i >= len(kept)]
    staying = set(kept)
    return [i if i in staying else movers.pop() for i in places]
