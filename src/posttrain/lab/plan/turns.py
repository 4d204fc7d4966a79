"""Completions of several turns: each turn is a request after all earlier tokens, with replies in between.

    before turn k     k (sampled + given) tokens after the prompt, k from 0
    waiting           rows x replies x seconds of a reply / trajectories that wait in parallel

`RunConfig.longest_completion` limits the length of a trajectory, also for the trainer. episodes/episodes.py decides
when a trajectory returns: usually as soon as it is ready, so that all can wait in parallel. If a count decides, half
of the open trajectories wait while the others are sampled. Sampling hides some of the waiting, and the last
trajectories wait with fewer in parallel; the plan ignores both.
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
"""Ratio of open trajectories to rows sampled together (episodes/episodes.py)."""


class Answering(NamedTuple):
    """Inputs of a plan about tools and environments that the configuration does not contain."""

    given_tokens: int | None = None
    """Mean tokens of a reply."""
    call_seconds: float = 0.0
    """Time of a reply, in seconds."""
    mean_turns: float | None = None
    mean_tokens: int | None = None
    """Mean tokens of a turn."""


UNTOLD = Answering()


def turns_of(config: RunConfig, answering: Answering) -> Turns | None:
    """Return the turns of a run. None if each answer has one turn. If the length of replies is not given, they are
    assumed to fill what `max_trajectory_length` leaves, if anything."""
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
    """Return the maximum tokens after a prompt: the trainer's limit, or the turns with their replies, if longer."""
    most = config.longest_completion
    return most if config.sampling.max_trajectory_length is not None else max(most, turns.whole)


class Request(NamedTuple):
    """A request to sample one turn."""

    before: int
    """Tokens between the prompt and this turn."""
    tokens: int
    share: float
    """Share of trajectories that reach this turn."""


def requests(turns: Turns, room: int) -> Iterator[Request]:
    """Yield turns of the mean length, up to the mean number of turns, within `room` tokens.

    >>> list(requests(Turns(number=3, tokens=8, given=4, mean_number=1.5, mean_tokens=8), 100))
    [Request(before=0, tokens=8, share=1.0), Request(before=12, tokens=8, share=0.5)]
    """
    for number in range(ceil(turns.mean_number)):
        before = number * (turns.mean_tokens + turns.given)
        if room > before:
            share = min(1.0, turns.mean_number - number)
            yield Request(before, min(turns.mean_tokens, room - before), share)


def first_and_last(workload: Workload) -> tuple[Workload, ...]:
    """Return the workloads of sampling first turns and last turns. Their prompts are all tokens before the turn.

    Rows of a group share their prompt and then diverge. Waiting trajectories are not sampled: if a count decides, half
    of them wait, less one row.
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
    """Does a count decide which trajectory returns to the batch? On a CPU it does if the other rows might change a
    row's bits: if not all products run in compiled kernels, which are assumed to be available."""
    a = workload.architecture
    if workload.device != "cpu" or workload.engine == "separate":
        return False
    linears = [linear for _, block in a.blocks for linear in (*block.attention, *block.mlp)]
    products = [(a.hidden, a.vocabulary), *((linear.inputs, linear.outputs) for linear in linears)]
    known = all(inputs * outputs <= COPIED_WEIGHTS and not outputs % LANES for inputs, outputs in products)
    known = known and not a.key_width % (2 * LANES) and not a.counts.experts
    return not known or not has_plain_decoder(workload) or is_cast(workload)


def waiting_seconds(turns: Turns | None, rows: int, drawn_together: int, *, counted: bool) -> float:
    """Return the seconds of waiting for tools and environments, in `rows` trajectories.

    64 trajectories of 5 turns, with replies of half a second; all wait in parallel, or only 32 of them:

    >>> turns = Turns(number=5, tokens=8, seconds=0.5, last_is_answered=True)
    >>> waiting_seconds(turns, 64, 64, counted=False), waiting_seconds(turns, 64, 64, counted=True)
    (2.5, 5.0)
    """
    if turns is None:
        return 0.0
    open_together = min(rows, OPEN * drawn_together)
    beside = max(1, open_together / 2 if counted else open_together)
    return rows * turns.answers * turns.seconds / beside
