"""A trajectory in the report, turn by turn."""

from __future__ import annotations

import json
from typing import Any

from tests.catalogue import catalogue

from posttrain.report.samples import Group, group_html

EPISODE = {"turns": 2, "calls": ["look", "look"], "errors": ["look"], "ended": "max_turns", "failure": ""}
ROW: dict[str, Any] = {
    "completion_ids": [5, 6, 7, 8, 9],
    "given": [[2, 4]],
    "advantages": [1.0, 1.0, 0.0, 0.0, 1.0],
    "logprobs": [-1.0, -2.0, -3.0],
    "reward": 1.0,
    "scored": True,
    "episode": json.dumps(EPISODE),
}


def shown(**changes: Any) -> str:
    return group_html(Group(prompt="p", rows=[{**ROW, **changes}]), 1.0, None)


def test_drawn_and_given_pieces_are_told_apart_and_have_their_own_numbers():
    html = shown()
    assert '<span class="p4" data-t="6|1.000|-2.000">6 </span><br><i class="given">environment</i>' in html
    assert '<span class="given" data-t="7|0.000|">7 </span>' in html
    assert '<i class="given">model</i> <span class="p4" data-t="9|1.000|-3.000">9 </span>' in html
    assert "2 turns · look × 2 · 1 failed calls · max_turns" in html


def test_what_a_turn_earned_stands_beside_it():
    html = shown(episode=json.dumps(EPISODE | {"turn_rewards": [-0.1, 0.25]}))
    assert '<i class="given">reward -0.1</i> <span class="p4" data-t="5|' in html
    assert '<br><i class="given">model · reward +0.25</i> <span class="p4" data-t="9|' in html
    html = shown(episode=json.dumps(EPISODE | {"turn_rewards": [None, "<b>"]}))
    assert "reward -" not in html
    assert '<i class="given">model</i>' in html


@catalogue("given", [None, "x", [[4, 2]], [[-9, 99]], [["a", 1]], [[1]]])
@catalogue("episode", [None, "{", "[]", "7", '{"turns": "<b>"}', "[" * 100_000])
def test_a_file_of_another_program_is_shown_all_the_same(given: Any, episode: Any):
    html = shown(given=given, episode=episode)
    assert "turns" not in html
    assert "<b>" not in html.replace('<b class="reward">', "").replace("<b dir", "")
