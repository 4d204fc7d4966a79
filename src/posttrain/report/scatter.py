"""Scatter plots as SVG text: results against a setting, and quality against cost.

Shapes repeat the meaning of the colours: a dot for a run that ended well, a faint dot for one that was stopped early, a
cross for one that collapsed, a ring around the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from posttrain.report.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    Format,
    compact,
    grid,
    linear_axis,
    linear_axis_exact,
    log_axis,
    picture,
)
from posttrain.report.text import escaped

Shape = Literal["dot", "faint", "cross", "best"]


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One point of a scatter plot."""

    x: float
    y: float | None
    """None if nothing was measured; the point is then drawn at the bottom."""
    shape: Shape
    title: str
    """Text that the browser shows under the pointer, and that screen readers read."""


@dataclass(frozen=True, kw_only=True)
class Across:
    """The x axis: linear, whole or logarithmic numbers, or names."""

    low: float
    high: float
    log: bool = False
    names: Sequence[str] = ()
    whole: bool = False
    """True if the values are whole numbers."""

    def axis(self) -> Axis:
        start, end = LEFT, WIDTH - RIGHT
        if self.names:
            room = len(self.names) - 0.5
            return Axis(low=-0.5, high=room, start=start, end=end, ticks=[float(n) for n in range(len(self.names))])
        if self.log:
            return log_axis(self.low, self.high, start, end)
        if self.whole:
            return replace(linear_axis_exact(self.low - 0.5, self.high + 0.5), start=start, end=end)
        return linear_axis(self.low, self.high, start, end, ticks=6)

    def tick(self, value: float) -> str:
        return self.names[int(value)] if self.names else compact(value)


def scatter_chart(
    marks: Sequence[Mark],
    across: Across,
    *,
    label: str,
    region: tuple[float, float] | None = None,
    line: tuple[float, str] | None = None,
) -> str:
    """Draw points. `region` is a shaded range of the x axis, `line` a named position on it."""
    values = [mark.y for mark in marks if mark.y is not None]
    if not values:
        return ""
    x_axis = across.axis()
    y_axis = linear_axis(min(0.0, *values), max(values), HEIGHT - BOTTOM, TOP)
    body = [_shaded(x_axis, region) if region else "", grid(x_axis, y_axis, compact, across.tick), _named(x_axis, line)]
    order: tuple[Shape, ...] = ("faint", "cross", "dot", "best")
    body += [_drawn(mark, x_axis, y_axis) for shape in order for mark in marks if mark.shape == shape]
    return picture("\n".join(body), label)


def _shaded(x_axis: Axis, region: tuple[float, float]) -> str:
    low, high = (x_axis(min(max(edge, x_axis.low), x_axis.high)) for edge in region)
    width, height = round(high - low, 2), HEIGHT - BOTTOM - TOP
    return f'<rect class="band s2" x="{low}" y="{TOP}" width="{width}" height="{height}"/>'


def _named(x_axis: Axis, line: tuple[float, str] | None) -> str:
    if line is None or not x_axis.low <= line[0] <= x_axis.high:
        return ""
    x = x_axis(line[0])
    drawn = f'<line class="mark" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
    return f'{drawn}<text class="tick" x="{x + 4}" y="{HEIGHT - BOTTOM - 6}">{escaped(line[1])}</text>'


def _drawn(mark: Mark, x_axis: Axis, y_axis: Axis) -> str:
    x, y = x_axis(mark.x), y_axis(mark.y if mark.y is not None else y_axis.low)
    title = f"<title>{escaped(mark.title)}</title>"
    if mark.shape == "cross":
        return f'<path class="whisker s2" d="M{x - 4.5} {y - 4.5}l9 9m0 -9l-9 9">{title}</path>'
    colour = "s6" if mark.shape == "faint" else "s1"
    dot = f'<circle class="dot {colour}" cx="{x}" cy="{y}" r="4">{title}</circle>'
    return dot + (f'<circle class="whisker s1" cx="{x}" cy="{y}" r="8"/>' if mark.shape == "best" else "")


# --- cost against quality --------------------------------------------------------------------------------------------


ROOM = 90
"""Space to the right of the plot, in pixels, for the name of the most expensive spot."""


@dataclass(frozen=True, kw_only=True)
class Spot:
    """One compared item: more expensive to the right, better to the top (to the bottom if lower is better)."""

    name: str
    x: float
    y: float
    interval: tuple[float, float]
    """Interval of y: (low, high)."""
    colour: int = 1
    steady: bool = True
    """True: drawn filled. False: drawn hollow, because something about it went wrong."""


def frontier(spots: Sequence[Spot], *, lower: bool = False) -> list[Spot]:
    """Return the Pareto frontier, the cheapest first: spots that no other spot beats in both cost and quality.

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
    """Draw spots with their intervals. A dashed line joins the frontier. Do not rely on hollow spots."""
    if not spots:
        return ""
    ends = [edge for spot in spots for edge in (*spot.interval, spot.y)]
    if y_range is not None:
        ends = [min(max(edge, y_range[0]), y_range[1]) for edge in ends]
    x_axis = linear_axis(0.0, max(spot.x for spot in spots), LEFT, WIDTH - ROOM)
    y_axis = linear_axis(min(ends), max(ends), HEIGHT - BOTTOM, TOP)
    best = " ".join(f"{x_axis(s.x):g},{y_axis(s.y):g}" for s in frontier(spots, lower=lower))
    body = [
        grid(x_axis, y_axis, form, x_form),
        f'<polyline class="frontier" points="{best}"/>',
        f'<text class="tick" x="{(LEFT + WIDTH - ROOM) / 2}" y="{HEIGHT + 8}" text-anchor="middle">'
        f"{escaped(x_name)}</text>",
        *(_spot(spot, x_axis, y_axis) for spot in spots),
    ]
    return picture("\n".join(body), label, height=HEIGHT + 14)


def _spot(spot: Spot, x_axis: Axis, y_axis: Axis) -> str:
    x, y = x_axis(spot.x), y_axis(spot.y)
    low, high = (y_axis(min(max(edge, y_axis.low), y_axis.high)) for edge in spot.interval)
    kind = f"dot s{spot.colour}" if spot.steady else f"dot hollow s{spot.colour}"
    return (
        f'<path class="whisker s{spot.colour}" d="M{x} {low}V{high}M{x - 4} {low}h8M{x - 4} {high}h8"/>'
        f'<circle class="{kind}" cx="{x}" cy="{y}" r="5"/>'
        f'<text class="tick" x="{x + 9}" y="{y + 4}">{escaped(spot.name)}</text>'
    )
