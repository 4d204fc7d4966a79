"""While trajectories wait for their tools, the others are decoded."""

from __future__ import annotations

import time
from itertools import chain

import pytest
from tests.episodes.talkers import episodes, play, prompts, talker

TURNS, PAUSE = 5, 0.5


@pytest.mark.slow
def test_64_trajectories_with_a_tool_of_half_a_second_take_little_longer_than_without():
    """At most 1.3 times the time of the very same tokens; one after the other, the calls would take 160 s."""
    model, seconds, found = talker(context=1024, width=192, layers=3, ends=-0.5), [], []
    for pause in (0.0, PAUSE):
        with episodes("Chatty", max_turns=TURNS, context=1024, settings={"pause": pause}, model=model) as one:
            play(one, prompts(2), max_completion_length=150)  # what is compiled is compiled
            began = time.monotonic()
            found.append(play(one, prompts(64), max_completion_length=150))
            seconds.append(time.monotonic() - began)
    assert found[0] == found[1]
    calls = sum(c.episode.turns for c in chain(*found[0]) if c.episode)
    print(f"{calls} turns: {seconds[0]:.1f} s without waiting, {seconds[1]:.1f} s with {PAUSE} s for each")
    assert calls >= 64 * TURNS * 0.9
    assert seconds[1] <= 1.3 * seconds[0]
