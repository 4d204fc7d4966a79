"""The charts: round axes, gaps, extremes that are kept, and readable numbers."""

import re
import xml.etree.ElementTree as xml

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.catalogue import catalogue

from posttrain.report.svg import (
    IntervalRow,
    Series,
    compact,
    interval_bars,
    line_chart,
    linear_axis,
    log_axis,
    percent,
    seconds,
    smooth,
    stacked_chart,
    thin,
)

finite = st.floats(-1e12, 1e12, allow_nan=False, allow_infinity=False)


@given(finite, finite)
@settings(max_examples=100, deadline=None)
def test_an_axis_contains_its_data_between_its_ticks(a, b):
    low, high = min(a, b), max(a, b)
    axis = linear_axis(low, high, 0, 100)
    slack = 1e-6 * max(1.0, abs(low), abs(high))
    assert axis.low <= low + slack
    assert axis.high >= high - slack
    assert axis.ticks == sorted(axis.ticks)
    assert 2 <= len(axis.ticks) <= 8


def test_a_logarithmic_axis_has_whole_powers_of_ten():
    axis = log_axis(2e-7, 3e-4, 100, 0)
    assert axis.ticks == pytest.approx([1e-7, 1e-6, 1e-5, 1e-4, 1e-3])
    assert (axis(1e-7), axis(1e-3), axis(0.0)) == (100, 0, 100), "0 has no logarithm and is drawn at the bottom"


@given(
    st.lists(st.tuples(st.integers(0, 10**6), finite), min_size=1, max_size=30, unique_by=lambda p: p[0]), st.booleans()
)
@settings(max_examples=60, deadline=None)
def test_any_finite_series_is_drawn_inside_the_picture(points, log):
    points = sorted(points)
    chart = xml.fromstring(line_chart([Series(name="x", points=points)], label="<label>", log=log))
    assert chart.get("aria-label") == "<label>"
    shapes = [e for e in chart if e.tag in ("polyline", "circle") and "s1" in e.get("class", "")]
    numbers = [
        float(n)
        for e in shapes
        for n in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", e.get("points") or f"{e.get('cx')} {e.get('cy')}")
    ]
    assert all(-1 <= n <= 561 for n in numbers)


def test_thinning_keeps_the_first_the_last_and_every_spike():
    points = [(float(i), float(i == 7_777)) for i in range(10_000)]
    kept = thin(points, 400)
    assert len(kept) <= 402
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert (7_777.0, 1.0) in kept
    assert kept == sorted(kept)


def test_the_running_mean_does_not_look_ahead():
    assert smooth([(1, 1.0), (2, 3.0), (3, 8.0)], 2) == [(1, 1.0), (2, 2.0), (3, 5.5)]


def test_nothing_to_draw_is_no_chart():
    assert line_chart([Series(name="x", points=[])], label="") == ""
    assert stacked_chart([], [], label="") == ""


def test_one_step_is_a_dot_and_a_single_stack_has_a_width():
    assert "<circle" in line_chart([Series(name="x", points=[(5, 0.5)])], label="")
    polygon = re.search('points="([^"]+)"', stacked_chart(["a"], [(1.0, [2.0])], label=""))[1]
    assert len({point.split(",")[0] for point in polygon.split()}) == 2


def test_bars_write_their_values_beside_them():
    row = IntervalRow(label="pass@4 & more", bars=[("baseline", 0.25, 0.2, 0.3), ("trained", 0.9, 0.8, 0.95)])
    chart = xml.fromstring(interval_bars([row], label="l", form=percent, low=0.0, high=1.0))
    texts = [element.text for element in chart.iter("text")]
    assert "pass@4 & more" in texts
    assert texts[-2:] == ["25%", "90%"]
    widths = [float(element.get("width")) for element in chart.iter("rect")]
    assert widths[1] / widths[0] == pytest.approx(0.9 / 0.25, rel=0.01)


@catalogue(
    "form, value, text",
    [
        (compact, 0.0, "0"),
        (compact, 9_999.4, "9,999"),
        (compact, -12_500, "-12.5k"),
        (compact, 1e-300, "1e-300"),
        (compact, 3e15, "3000T"),
        (percent, 0.9961, "99.6%"),
        (percent, 1.0, "100%"),
        (percent, -0.25, "-25%"),
        (seconds, 0.0, "0"),
        (seconds, 59.6, "1 min 00 s"),
        (seconds, 86_400, "24 h 00 min"),
    ],
)
def test_numbers_are_written_for_people(form, value, text):
    assert form(value) == text
