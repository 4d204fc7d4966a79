"""While trajectories wait for their tools, others are decoded. `benchmarks/waiting.py` measures what that costs."""

from __future__ import annotations

from itertools import chain

from tests.episodes.talkers import episodes, play, prompts


def test_calls_are_waited_for_side_by_side_and_change_nothing():
    """One after the other, nothing would be drawn during any of them."""
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
