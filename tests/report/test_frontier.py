"""The plot of cost against quality: which spots no other beats, and how they are drawn."""

from __future__ import annotations

import re

import pytest

from posttrain.report.scatter import Spot, frontier, frontier_chart
from posttrain.report.svg import compact, percent


def spot(name: str, x: float, y: float, **given) -> Spot:
    return Spot(name=name, x=x, y=y, interval=(y - 0.1, y + 0.1), **given)


SPOTS = [spot("dear", 3, 0.5), spot("cheap", 1, 0.3), spot("best", 2, 0.6), spot("twin", 1, 0.2)]


@pytest.mark.parametrize(("lower", "expected"), [(False, ["cheap", "best"]), (True, ["twin"])])
def test_the_frontier_is_what_no_other_beats_in_both(lower: bool, expected: list[str]):
    assert [one.name for one in frontier(SPOTS, lower=lower)] == expected


def test_every_spot_is_drawn_with_its_name_its_interval_and_whether_it_was_steady():
    drawn = frontier_chart(
        [*SPOTS, spot("<b>wild</b>", 2.5, 0.4, steady=False)],
        label="Cost",
        x_name="tokens",
        form=percent,
        x_form=compact,
    )
    assert drawn.count("<circle") == drawn.count('class="whisker') == 5
    assert drawn.count("hollow") == 1
    assert "&lt;b&gt;wild&lt;/b&gt;" in drawn
    assert len(re.findall(r"[\d.]+,[\d.]+", drawn.split('class="frontier" points="')[1].split('"')[0])) == 2


def test_intervals_of_shares_stay_on_the_plot():
    wide = Spot(name="a", x=1, y=0.9, interval=(0.2, 1.6))
    drawn = frontier_chart([wide], label="", x_name="", form=percent, x_form=compact, y_range=(0.0, 1.0))
    assert "120%" not in drawn
    assert frontier_chart([], label="", x_name="", form=percent, x_form=compact) == ""
