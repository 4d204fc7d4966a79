"""While trajectories wait for their tools, the others are decoded."""

from __future__ import annotations

import time
from itertools import chain

import pytest
from tests.episodes.talkers import episodes, play, prompts, talker

TURNS, PAUSE = 5, 0.5


@pytest.mark.slow
def test_64_trajectories_with_a_tool_of_half_a_second_take_little_longer_than_without():
    """At most 1.3 times the time in which the same tokens are drawn; one after the other, the calls would take 160 s.

    That time is what is left of the same run without the seconds in which nothing was drawn: between two runs the
    machine may have other things to do. Without a pause, the very same tokens come out.
    """
    model, found = talker(context=4096, width=256, layers=3, ends=-2.0), []
    for pause in (PAUSE, 0.0):
        with episodes("Chatty", max_turns=TURNS, context=4096, settings={"pause": pause}, model=model) as one:
            play(one, prompts(2), max_completion_length=400)  # what is compiled is compiled
            one.take_waits()
            began = time.monotonic()
            found.append(play(one, prompts(64), max_completion_length=400))
            seconds, waits = time.monotonic() - began, one.take_waits()
        drawing = seconds - waits.blocked
        print(f"pause of {pause} s: {seconds:.1f} s, {drawing:.1f} of them drawing; {waits.asked:.0f} s in calls")
        if pause:
            assert waits.asked >= 64 * (TURNS - 1) * PAUSE * 0.8
            assert seconds <= 1.3 * drawing
    assert found[0] == found[1]
    turns = sum(completion.episode.turns for completion in chain(*found[0]) if completion.episode)
    assert turns >= 240
