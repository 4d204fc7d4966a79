"""Trajectories between a driver and real environments: the test supplies the turns instead of an engine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.episodes.talkers import EOS, WORDS, episodes, prompts

from posttrain.controller.messages import Event, Finished, Resumed, Row
from posttrain.experience.trajectories import Trajectories
from posttrain.types import Completion


@contextmanager
def trajectories(world: str, most: int = 8, **how: object) -> Iterator[tuple[Trajectories, list[Event]]]:
    """Trajectories, and the events that they have reported so far."""
    told: list[Event] = []
    with episodes(world, **how) as one:  # type: ignore[arg-type]
        made = Trajectories(one.scene, most)
        made.tell = told.append
        yield made, told


def opened(own: Trajectories, *rows: Row) -> None:
    for row in rows:
        own.open(row, prompts(1)[0], seed=3, max_turn_length=9)


def says(word: str, version: int = 0) -> Completion:
    ids = (WORDS.index(word), EOS)
    return Completion(ids=ids, logprobs=(-1.0, -2.0), versions=(version, version), finish_reason="eos", text=word)


def until(own: Trajectories, told: list[Event], count: int) -> list[Event]:
    end = time.monotonic() + 30
    while len(told) < count and time.monotonic() < end:
        own.poll()
        time.sleep(0.005)
    return told


def test_turns_keep_the_versions_of_their_time_and_what_was_given_has_none():
    row = Row(0, 0)
    with trajectories("Guess") as (own, told):
        opened(own, row)
        assert until(own, told, 1) == [Resumed(row)]
        first = own.next_turn(row)
        assert (first.context, first.room, first.drawn) == (prompts(1)[0].ids, 9, 0)
        own.drew(row, says("c", version=4))
        assert until(own, told, 2) == [Resumed(row)] * 2
        second = own.next_turn(row)
        assert second.context[: len(first.context) + 2] == (*first.context, *says("c").ids)
        assert second.drawn == 2
        own.drew(row, says("a", version=6))
        assert until(own, told, 3)[-1] == Finished(row)
        found = own.completion(row)
        assert found.versions == (4, 4, 6, 6)
        assert found.ids == second.context[len(first.context) :] + says("a").ids
        assert sum(found.drawn) == 4
        assert found.episode is not None
        assert (found.episode.turns, found.episode.reward) == (2, 1.0)
        assert own.take_waited() > 0
        assert own.take_waited() == 0
        saved = json.loads(json.dumps(own.state()))
        own.forget(row)
        assert row not in own
        own.load_state(saved)
        assert own.completion(row) == found


def test_as_many_are_open_as_there_is_room_for_and_those_of_an_evaluation_begin_first():
    first, second, asked = Row(0, 0), Row(0, 1), Row(-1, 0)
    with trajectories("Guess", most=1) as (own, told):
        opened(own, first, second, asked)
        assert until(own, told, 1) == [Resumed(first)]
        own.poll()
        assert len(told) == 1, "only one trajectory has room"
        own.drew(first, says("a"))
        assert until(own, told, 3) == [Resumed(first), Finished(first), Resumed(asked)]
        own.forget(second)
        own.drew(asked, says("a"))
        assert until(own, told, 4)[3:] == [Finished(asked)]
        own.poll()
        assert len(told) == 4, "no other trajectory needs the room any more"


def test_a_world_that_fails_begins_anew_and_what_was_drawn_counts_no_more():
    row = Row(0, 0)
    with trajectories("Broken", attempts=2) as (own, told):
        opened(own, row)
        until(own, told, 1)
        own.drew(row, says("c"))
        assert until(own, told, 2) == [Resumed(row), Resumed(row, anew=True)]
        assert own.next_turn(row).drawn == 0
        own.drew(row, says("c"))
        assert until(own, told, 3)[-1] == Finished(row)
        assert (own.completion(row).failure, own.completion(row).episode.attempts) == ("exception", 2)  # type: ignore[union-attr]


def test_what_is_given_up_leaves_no_process():
    row = Row(0, 0)
    with trajectories("Guess", settings={"pause": 60.0}) as (own, told):
        opened(own, row)
        until(own, told, 1)
        own.drew(row, says("c"))
        assert own.scene.sessions._open
        own.forget(row)
        assert not own.scene.sessions._open
        own.drew(row, says("c"))
        own.poll()
        assert told == [Resumed(row)]
