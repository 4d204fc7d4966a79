"""Completions of several turns: each is a request behind all that came before it, and between them others answer.

    before turn k     k (drawn + given) tokens behind the prompt, k from 0
    waiting           rows x answers x seconds of one / trajectories that wait side by side

How long a trajectory may become says the configuration (`RunConfig.longest_completion`), to the trainer as well. Who
comes back when says episodes/episodes.py: as soon as it is ready, so that all may wait side by side; where that is
counted, half of the open trajectories wait while the others are drawn. Drawing hides some of the waiting, and the last
trajectories wait with fewer beside them; neither is planned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import NamedTuple

from posttrain.config import RunConfig
from posttrain.lab.plan.generate import has_plain_decoder, is_cast
from posttrain.lab.plan.records import Turns, Workload
from posttrain.models.footprint import COPIED_WEIGHTS, LANES

OPEN = 2
"""Times as many trajectories are open as rows are drawn (episodes/episodes.py)."""


class Answering(NamedTuple):
    """The facts about tools and environments that a plan is given beside the configuration."""

    given_tokens: int | None = None
    """Tokens of a reply, on average."""
    call_seconds: float = 0.0
    """Until it is there."""
    mean_turns: float | None = None
    mean_tokens: int | None = None
    """Mean tokens of a turn."""


UNTOLD = Answering()


def turns_of(config: RunConfig, answering: Answering) -> Turns | None:
    """None where each answer has one turn. Where nobody says how long answers of tools are, they fill what
    `max_trajectory_length` leaves, if anything."""
    if not config.has_turns:
        return None
    sampling = config.sampling
    number, tokens, limit = sampling.max_turns, sampling.max_completion_length, sampling.max_trajectory_length
    given = answering.given_tokens
    if given is None:
        given = max(0, (limit or 0) - number * tokens) // max(1, number - 1)
    return Turns(
        number=number,
        tokens=tokens,
        given=given,
        mean_number=answering.mean_turns or float(number),
        mean_tokens=answering.mean_tokens or tokens,
        seconds=answering.call_seconds,
        last_is_answered=config.environment.function is not None,
    )


def longest_trajectory(config: RunConfig, turns: Turns) -> int:
    """Tokens behind a prompt: what the trainer tries at its start, and what was said to stand between."""
    most = config.longest_completion
    return most if config.sampling.max_trajectory_length is not None else max(most, turns.whole)


class Request(NamedTuple):
    """A turn that is drawn."""

    before: int
    """Tokens between the prompt and it."""
    tokens: int
    share: float
    """The share of trajectories that come so far."""


def requests(turns: Turns, room: int) -> Iterator[Request]:
    """Turns of the mean length, as many as there are on average, within `room` tokens.

    >>> list(requests(Turns(number=3, tokens=8, given=4, mean_number=1.5, mean_tokens=8), 100))
    [Request(before=0, tokens=8, share=1.0), Request(before=12, tokens=8, share=0.5)]
    """
    for number in range(ceil(turns.mean_number)):
        before = number * (turns.mean_tokens + turns.given)
        if room > before:
            share = min(1.0, turns.mean_number - number)
            yield Request(before, min(turns.mean_tokens, room - before), share)


def first_and_last(workload: Workload) -> tuple[Workload, ...]:
    """Steps in which the first turns are drawn, and the last ones: of each the prompts are what stands before it.

    Rows of a group begin alike, and go apart with what they draw. Who waits is not drawn: where that is counted, it is
    one half, but for one row.
    """
    turns = workload.turns
    if turns is None:
        return (workload,)
    answer = min(turns.tokens, workload.completion_tokens)
    first = replace(workload, turns=None, completion_tokens=answer)
    if turns.number == 1:
        return (first,)
    rows = workload.rows // 2 + 1 if is_counted(workload) else workload.rows
    before = workload.completion_tokens - answer
    last = replace(first, prompts_per_step=rows, group_size=1, prompt_tokens=workload.prompt_tokens + before)
    return first, last


def is_counted(workload: Workload) -> bool:
    """Does the sampler count who comes back? That of a CPU does where a row might get other bits beside other rows:
    where its products are not all those of compiled kernels, which are taken for granted."""
    a = workload.architecture
    if workload.device != "cpu" or workload.engine == "separate":
        return False
    linears = [linear for _, block in a.blocks for linear in (*block.attention, *block.mlp)]
    products = [(a.hidden, a.vocabulary), *((linear.inputs, linear.outputs) for linear in linears)]
    known = all(inputs * outputs <= COPIED_WEIGHTS and not outputs % LANES for inputs, outputs in products)
    known = known and not a.key_width % (2 * LANES) and not a.counts.experts
    return not known or not has_plain_decoder(workload) or is_cast(workload)


def waiting_seconds(turns: Turns | None, rows: int, drawn_together: int, *, counted: bool) -> float:
    """Seconds of waiting for tools and environments, in so many trajectories.

    64 trajectories of 5 turns and an environment of half a second, which all wait side by side, or 32 of them:

    >>> turns = Turns(number=5, tokens=8, seconds=0.5, last_is_answered=True)
    >>> waiting_seconds(turns, 64, 64, counted=False), waiting_seconds(turns, 64, 64, counted=True)
    (2.5, 5.0)
    """
    if turns is None:
        return 0.0
    open_together = min(rows, OPEN * drawn_together)
    beside = max(1, open_together / 2 if counted else open_together)
    return rows * turns.answers * turns.seconds / beside
