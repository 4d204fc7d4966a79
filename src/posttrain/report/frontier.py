"""What something costs against how good it is: a point per thing compared, with its interval, and who is not beaten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from posttrain.report.svg import HEIGHT, WIDTH, Axis, Format, grid, linear_axis, picture
from posttrain.report.text import escaped

_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 90, 12, 28


@dataclass(frozen=True, kw_only=True)
class Spot:
    """One thing compared: dearer to the right, better to the top (or to the bottom, where less is better)."""

    name: str
    x: float
    y: float
    interval: tuple[float, float]
    """Of y."""
    colour: int = 1
    steady: bool = True
    """Drawn full; hollow where something about it went wrong."""


def frontier(spots: Sequence[Spot], *, lower: bool = False) -> list[Spot]:
    """Those that none of the others beats in both cost and quality, the cheapest first.

    >>> known = {"a": (1, 1), "b": (2, 3), "c": (3, 2)}
    >>> spots = [Spot(name=name, x=x, y=y, interval=(y, y)) for name, (x, y) in known.items()]
    >>> [spot.name for spot in frontier(spots)]
    ['a', 'b']
    """
    sign = -1 if lower else 1
    kept: list[Spot] = []
    for spot in sorted(spots, key=lambda one: (one.x, -sign * one.y)):
        if not kept or sign * spot.y > sign * kept[-1].y:
            kept.append(spot)
    return kept


def frontier_chart(
    spots: Sequence[Spot],
    *,
    label: str,
    x_name: str,
    form: Format,
    x_form: Format,
    lower: bool = False,
    y_range: tuple[float, float] | None = None,
) -> str:
    """Spots with their intervals; a dashed line joins the frontier. What is hollow is not to be relied on."""
    if not spots:
        return ""
    ends = [edge for spot in spots for edge in (*spot.interval, spot.y)]
    if y_range is not None:
        ends = [min(max(edge, y_range[0]), y_range[1]) for edge in ends]
    x_axis = linear_axis(0.0, max(spot.x for spot in spots), _LEFT, WIDTH - _RIGHT)
    y_axis = linear_axis(min(ends), max(ends), HEIGHT - _BOTTOM, _TOP)
    best = " ".join(f"{x_axis(s.x):g},{y_axis(s.y):g}" for s in frontier(spots, lower=lower))
    body = [
        grid(x_axis, y_axis, form, x_form),
        f'<polyline class="frontier" points="{best}"/>',
        f'<text class="tick" x="{(_LEFT + WIDTH - _RIGHT) / 2}" y="{HEIGHT + 8}" text-anchor="middle">'
        f"{escaped(x_name)}</text>",
        *(_drawn(spot, x_axis, y_axis) for spot in spots),
    ]
    return picture("\n".join(body), label, "", height=HEIGHT + 14)


def _drawn(spot: Spot, x_axis: Axis, y_axis: Axis) -> str:
    x, y = x_axis(spot.x), y_axis(spot.y)
    low, high = (y_axis(min(max(edge, y_axis.low), y_axis.high)) for edge in spot.interval)
    kind = f"dot s{spot.colour}" if spot.steady else f"dot hollow s{spot.colour}"
    return (
        f'<path class="whisker s{spot.colour}" d="M{x} {low}V{high}M{x - 4} {low}h8M{x - 4} {high}h8"/>'
        f'<circle class="{kind}" cx="{x}" cy="{y}" r="5"/>'
        f'<text class="tick" x="{x + 9}" y="{y + 4}">{escaped(spot.name)}</text>'
    )
