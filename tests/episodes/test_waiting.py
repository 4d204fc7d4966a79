"""While trajectories wait for their tools, others are decoded. `benchmarks/waiting.py` measures the cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import pytest
from tests.cpu.test_plain_decoder import COMPILED, needs_kernels
from tests.engines.policies import Settings
from tests.episodes.talkers import episodes, plain_talker, play, prompts, talker

from posttrain.engines.engine import Request
from posttrain.engines.row_stream import RowStream
from posttrain.episodes.episodes import Episodes
from posttrain.episodes.play import Play
from posttrain.models.compute import PLAIN
from posttrain.types import Completion

LATE = (0.4, 0.0, 0.01, 0.0, 0.02, 0.0)
"""Seconds that the tool of each trajectory takes."""


def come(one: Episodes, pauses: Sequence[float], rows: int = 64) -> list[tuple[int, Completion]]:
    """The completions with the index of their prompt, in the order in which they arrive."""
    own = [replace(p, columns={**p.columns, "pause": pause}) for p, pause in zip(prompts(6), pauses, strict=True)]
    settings = Settings(max_completion_length=30, max_batch_rows=rows)
    return [(place, completion) for place, _, completion in one.each(own, settings, group_size=1, seed=3)]


@pytest.mark.slow
def test_calls_are_waited_for_side_by_side_and_change_nothing():
    """If the calls were made one after the other, nothing would be drawn during any of them."""
    found = []
    for pause in (0.25, 0.0):
        with episodes("Chatty", max_turns=3, settings={"pause": pause}) as one:
            found.append(list(chain(*play(one, prompts(16)))))
            waits = one.take_waits()
        calls = sum(completion.episode.turns - 1 for completion in found[-1] if completion.episode)
        assert calls >= 20
        if pause:
            assert waits.asked >= calls * pause
            assert waits.blocked <= waits.asked / 2
    assert found[0] == found[1]


@pytest.mark.slow
@needs_kernels
def test_whoever_is_ready_comes_back_where_rows_stand_alone():
    """Each trajectory draws the same bits in any batch, and also alone."""
    with episodes("Unequal", max_turns=3, model=plain_talker(), compute=COMPILED) as one:
        found = come(one, LATE)
        assert found[-1][0] == 0, "the trajectory with the slow tool started with the others, and none waited for it"
        assert one.take_waits().blocked > 0, "at the end there was nothing else to do"
        assert sorted(found) == sorted(come(one, [0.0] * 6)) == sorted(come(one, LATE, rows=1))


@needs_kernels
@pytest.mark.parametrize("compute", [PLAIN, COMPILED])
def test_where_rows_do_not_stand_alone_who_comes_back_is_counted(compute, monkeypatch):
    """The batches are the same whatever the tools' delays, also if compiled kernels compute a part.

    Trajectories may end in another order: timing decides when the last answer of an environment arrives, and that
    answer is in no batch."""
    events: list[str] = []
    submit, step = RowStream.submit, RowStream.step

    def submitted(stream: RowStream[Play], play: Play, request: Request, **drawn: int) -> None:
        events.append(f"turn {play.turns} of {play.place} begins")
        submit(stream, play, request, **drawn)

    def stepped(stream: RowStream[Play]) -> list[tuple[Play, Completion]]:
        events.append("a token of each row")
        return step(stream)

    monkeypatch.setattr(RowStream, "submit", submitted)
    monkeypatch.setattr(RowStream, "step", stepped)
    found, batches = [], []
    with episodes("Unequal", max_turns=3, model=talker(), compute=compute) as one:
        for pauses in (LATE, [0.0] * 6):
            events.clear()
            found.append(sorted(come(one, pauses)))
            batches.append([*events])
    assert found[0] == found[1]
    assert batches[0] == batches[1]
    assert sum("begins" in event for event in batches[0]) >= 12, "most trajectories have several turns"
