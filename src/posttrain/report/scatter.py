"""Points over one quantity each, as SVG text: what was tried, what came of it, and where it turns.

Shapes say what colours say: a dot that ended well, a faint dot that was stopped early, a cross that collapsed, a ring
around the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from posttrain.report.svg import HEIGHT, WIDTH, Axis, Format, compact, linear_axis, linear_axis_exact, log_axis
from posttrain.report.text import escaped

Shape = Literal["dot", "faint", "cross", "best"]
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 16, 12, 28


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One point."""

    x: float
    y: float | None
    """None: nothing was measured; drawn at the foot."""
    shape: Shape
    title: str
    """Shown by a browser under the pointer, and read out."""


@dataclass(frozen=True, kw_only=True)
class Across:
    """The x axis: numbers, also whole or logarithmic, or names side by side."""

    low: float
    high: float
    log: bool = False
    names: Sequence[str] = ()
    whole: bool = False
    """Whole numbers."""

    def axis(self) -> Axis:
        start, end = _LEFT, WIDTH - _RIGHT
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
    form: Format = compact,
    region: tuple[float, float] | None = None,
    line: tuple[float, str] | None = None,
) -> str:
    """Points; `region` is a shaded stretch of the x axis, `line` a named place on it."""
    values = [mark.y for mark in marks if mark.y is not None]
    if not values:
        return ""
    x_axis = across.axis()
    y_axis = linear_axis(min(0.0, *values), max(values), HEIGHT - _BOTTOM, _TOP)
    body = [_shaded(x_axis, region) if region else "", _grid(x_axis, y_axis, form, across), _named(x_axis, line)]
    order: tuple[Shape, ...] = ("faint", "cross", "dot", "best")
    body += [_drawn(mark, x_axis, y_axis) for shape in order for mark in marks if mark.shape == shape]
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    return f'<svg class="chart" {size} role="img" aria-label="{escaped(label)}">\n' + "\n".join(body) + "\n</svg>"


def _shaded(x_axis: Axis, region: tuple[float, float]) -> str:
    low, high = (x_axis(min(max(edge, x_axis.low), x_axis.high)) for edge in region)
    width, height = round(high - low, 2), HEIGHT - _BOTTOM - _TOP
    return f'<rect class="band s2" x="{low}" y="{_TOP}" width="{width}" height="{height}"/>'


def _grid(x_axis: Axis, y_axis: Axis, form: Format, across: Across) -> str:
    parts = []
    for tick in y_axis.ticks:
        y = y_axis(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{escaped(form(tick))}</text>')
    for tick in x_axis.ticks:
        place = f'x="{x_axis(tick)}" y="{HEIGHT - 8}" text-anchor="middle"'
        parts.append(f'<text class="tick" {place}>{escaped(across.tick(tick))}</text>')
    return "\n".join(parts)


def _named(x_axis: Axis, line: tuple[float, str] | None) -> str:
    if line is None or not x_axis.low <= line[0] <= x_axis.high:
        return ""
    x = x_axis(line[0])
    drawn = f'<line class="mark" x1="{x}" x2="{x}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>'
    return f'{drawn}<text class="tick" x="{x + 4}" y="{HEIGHT - _BOTTOM - 6}">{escaped(line[1])}</text>'


def _drawn(mark: Mark, x_axis: Axis, y_axis: Axis) -> str:
    x, y = x_axis(mark.x), y_axis(mark.y if mark.y is not None else y_axis.low)
    title = f"<title>{escaped(mark.title)}</title>"
    if mark.shape == "cross":
        return f'<path class="whisker s2" d="M{x - 4.5} {y - 4.5}l9 9m0 -9l-9 9">{title}</path>'
    colour = "s6" if mark.shape == "faint" else "s1"
    dot = f'<circle class="dot {colour}" cx="{x}" cy="{y}" r="4">{title}</circle>'
    return dot + (f'<circle class="whisker s1" cx="{x}" cy="{y}" r="8"/>' if mark.shape == "best" else "")
