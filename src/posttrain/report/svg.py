"""Small charts as SVG text: lines with bands, stacked areas, bars with intervals. No dependency, no style attributes.

They are used where no script runs: in model cards, on paper, in frames, and on a page until its script draws the lines.

Colours come from CSS classes (`s1` ... `s6` for series), so the page chooses light or dark, and a strict content
security policy works. Every chart has a sentence that says what it shows, for screen readers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from posttrain.report.text import escaped

WIDTH, HEIGHT = 560, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 28
MOST_POINTS = 400
"""Maximum points of a line. More points than pixels only make the file large. Thinning keeps the extremes."""

Point = tuple[float, float]
Format = Callable[[float], str]


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of a plot: its name, its points with ascending x, and its style."""

    name: str
    points: Sequence[Point]
    colour: int = 1
    band: Sequence[tuple[float, float, float]] = ()
    """(x, low, high), drawn as a faint area."""
    dots: bool = False
    """True: draw points with the band as whiskers instead of a line. For a few measurements."""
    derived: bool = False
    """True if the line is a mean of another line; the page then does not smooth it again."""
    clock: int = 0
    """Index of the page's clock that turns the steps of this line into tokens and seconds."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A linear or logarithmic map from values to pixels, with round ticks."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    ticks: list[float] = field(default_factory=list)

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log10(max(value, low)), math.log10(low), math.log10(high)
        return round(self.start + (value - low) / (high - low) * (self.end - self.start), 2)


@dataclass(frozen=True, kw_only=True)
class IntervalRow:
    """One measured quantity with up to two states. Each state is a bar from 0 (or from the axis' low end) with
    whiskers."""

    label: str
    bars: Sequence[tuple[str, float, float, float]]
    """(class, mean, low, high) from top to bottom; the class is `baseline` or `trained`."""
    dots: Sequence[float] = ()
    """Single values to draw instead of bar and whiskers, if there are too few for a meaningful interval."""


def linear_axis(low: float, high: float, start: float, end: float, ticks: int = 4) -> Axis:
    """Return an axis whose ends are round numbers around [low, high].

    >>> linear_axis(0.03, 0.94, 0, 100).ticks
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    if not low < high:
        pad = abs(low) * 0.1 or 1.0
        low, high = (min(low, 0.0), high + pad) if low >= 0 else (low - pad, high + pad)
    step = _round_step((high - low) / ticks)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    marks = [i * step for i in range(first, last + 1)]
    return Axis(low=marks[0], high=marks[-1], start=start, end=end, ticks=[round(mark, 12) for mark in marks])


def log_axis(low: float, high: float, start: float, end: float) -> Axis:
    """Return an axis from power of ten to power of ten around [low, high], which are positive."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    last = max(last, first + 1)
    every = math.ceil((last - first) / 5)
    ticks = [10.0**power for power in range(first, last + 1, every)]
    return Axis(low=10.0**first, high=10.0**last, start=start, end=end, log=True, ticks=ticks)


def line_chart(
    series: Sequence[Series],
    *,
    label: str,
    form: Format | None = None,
    y_range: tuple[float | None, float | None] = (None, None),
    log: bool = False,
    mark: tuple[float, str] | None = None,
    x_form: Format = "{:g}".format,
) -> str:
    """Draw lines over x (steps by default). `y_range` extends the y axis; `mark` is a named horizontal line."""
    drawn = [s for s in series if s.points]
    if not drawn:
        return ""
    form = form or compact
    values = [y for s in drawn for _, y in s.points]
    values += [edge for s in drawn for _, low, high in s.band for edge in (low, high)]
    x_axis, y_axis = _axes(drawn, values, y_range, log)
    body = [grid(x_axis, y_axis, form, x_form)]
    if mark is not None and y_axis.low <= mark[0] <= y_axis.high:
        y = y_axis(mark[0])
        body.append(f'<line class="mark" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        body.append(f'<text class="tick" x="{WIDTH - RIGHT}" y="{y - 4}" text-anchor="end">{escaped(mark[1])}</text>')
    for s in drawn:
        body.append(_whiskers(s, x_axis, y_axis) if s.dots else _line(s, x_axis, y_axis))
    return picture("\n".join(body), label)


def stacked_chart(
    names: Sequence[str],
    rows: Sequence[tuple[float, Sequence[float]]],
    *,
    label: str,
    form: Format | None = None,
) -> str:
    """Draw stacked areas. `rows` are (x, one value per name)."""
    if not rows or not names:
        return ""
    rows = spread(rows, MOST_POINTS)
    tops = [(x, [math.fsum(values[: i + 1]) for i in range(len(names))]) for x, values in rows]
    x_axis = linear_axis_exact(rows[0][0], rows[-1][0])
    y_axis = linear_axis(0.0, max(sums[-1] for _, sums in tops), HEIGHT - BOTTOM, TOP)
    body = [grid(x_axis, y_axis, form or compact)]
    for i in range(len(names)):
        upper = _doubled([(x, sums[i]) for x, sums in tops])
        lower = _doubled([(x, sums[i - 1] if i else 0.0) for x, sums in tops])
        outline = _path(upper + lower[::-1], x_axis, y_axis)
        body.append(f'<polygon class="stack s{i + 1}" points="{outline}"/>')
    return picture("\n".join(body), label)


def agreement_chart(
    series: Sequence[Series], *, label: str, form: Format, across: tuple[float, float], up: tuple[float, float]
) -> str:
    """Draw observed against predicted values, with named axes and the diagonal on which both agree."""
    x_axis = linear_axis(*across, LEFT, WIDTH - RIGHT, ticks=5)
    y_axis = linear_axis(*up, HEIGHT - BOTTOM, TOP)
    low, high = max(x_axis.low, y_axis.low), min(x_axis.high, y_axis.high)
    diagonal = f'x1="{x_axis(low)}" y1="{y_axis(low)}" x2="{x_axis(high)}" y2="{y_axis(high)}"'
    middle, height = (LEFT + WIDTH - RIGHT) / 2, (HEIGHT - BOTTOM + TOP) / 2
    body = [
        grid(x_axis, y_axis, form, form),
        f'<line class="mark" {diagonal}/>',
        f'<text class="tick" x="{middle}" y="{HEIGHT + 8}" text-anchor="middle">predicted</text>',
        f'<text class="tick" x="9" y="{height}" transform="rotate(-90 9 {height})" text-anchor="middle">found</text>',
    ]
    shown = [replace(s, band=[(x, max(a, y_axis.low), min(b, y_axis.high)) for x, a, b in s.band]) for s in series]
    return picture("\n".join(body + [_whiskers(s, x_axis, y_axis) for s in shown]), label, height=HEIGHT + 14)


def interval_bars(rows: Sequence[IntervalRow], *, label: str, form: Format, low: float, high: float) -> str:
    """Draw horizontal bars with whiskers and their values as text, so that they are readable without colour."""
    bar, gap, left, right = 16, 16, 150, 64
    axis = linear_axis(low, high, left, WIDTH - right, ticks=4)
    y, body = 8.0, []
    bottom = 8 + sum(len(row.bars) * (bar + 3) + gap for row in rows)
    for tick in axis.ticks:
        x = axis(tick)
        body.append(f'<line class="grid" x1="{x}" x2="{x}" y1="4" y2="{bottom - 6}"/>')
        body.append(f'<text class="tick" x="{x}" y="{bottom + 8}" text-anchor="middle">{escaped(form(tick))}</text>')
    zero = axis(min(max(0.0, axis.low), axis.high))
    for row in rows:
        middle = y + len(row.bars) * (bar + 3) / 2
        body.append(
            f'<text class="name" x="{left - 12}" y="{middle + 3}" text-anchor="end">{escaped(row.label)}</text>'
        )
        for state, mean, down, up in row.bars:
            x, x1, x2 = axis(mean), axis(max(down, axis.low)), axis(min(up, axis.high))
            at = y + bar / 2
            if row.dots:
                body += [f'<circle class="dot s1" cx="{axis(value)}" cy="{at}" r="4"/>' for value in row.dots]
                right_of = axis(max(row.dots)) + 9
                body.append(f'<text class="value" x="{right_of}" y="{at + 4}">{escaped(form(mean))}</text>')
                y += bar + 3
                continue
            body.append(
                f'<rect class="bar {state}" x="{min(zero, x)}" y="{y}" rx="2" '
                f'width="{max(abs(x - zero), 1)}" height="{bar}"/>'
            )
            body.append(f'<path class="whisker" d="M{x1} {at}H{x2}M{x1} {at - 4}v8M{x2} {at - 4}v8"/>')
            body.append(f'<text class="value" x="{max(x, x2, zero) + 7}" y="{at + 4}">{escaped(form(mean))}</text>')
            y += bar + 3
        y += gap
    return picture("\n".join(body), label, height=bottom + 16)


def linear_axis_exact(low: float, high: float) -> Axis:
    """Return an x axis that ends exactly at the data, with ticks at round whole numbers."""
    if not low < high:
        return Axis(low=low - 0.5, high=low + 0.5, start=LEFT, end=WIDTH - RIGHT, ticks=[low])
    step = max(1.0, _round_step((high - low) / 6, whole=True))
    first = math.ceil(low / step)
    ticks = [i * step for i in range(first, math.floor(high / step) + 1)]
    return Axis(low=low, high=high, start=LEFT, end=WIDTH - RIGHT, ticks=ticks)


def compact(value: float) -> str:
    """Return a number in at most about six characters.

    >>> [compact(v) for v in (0, 0.25, 1234.5, 12_500_000, 3.2e-7, -0.0001)]
    ['0', '0.25', '1,234', '12.5M', '3.2e-7', '-1e-4']
    """
    size = abs(value)
    if size == 0:
        return "0"
    if size < 0.001:
        digits, power = f"{value:.1e}".split("e")
        return f"{digits.removesuffix('.0')}e{int(power)}"
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            divisor = 1e3 if unit == "k" else limit
            return f"{value / divisor:.1f}".removesuffix(".0") + unit
    if size >= 1000:
        return f"{value:,.0f}"
    text = f"{value:.3f}" if size < 10 else f"{value:.1f}"
    return text.rstrip("0").rstrip(".") or "0"


def percent(value: float) -> str:
    """Return a share in percent, with one decimal below 10% and between 99% and 100%.

    >>> [percent(v) for v in (0, 0.954, 0.5, 0.025, 0.0012, 0.9961)]
    ['0%', '95%', '50%', '2.5%', '0.1%', '99.6%']
    """
    shown = 100 * value
    fine = abs(shown) < 9.95 or 99 < abs(shown) < 100
    return f"{shown:.1f}".removesuffix(".0") + "%" if fine else f"{shown:.0f}%"


def seconds(value: float) -> str:
    """Return a duration as text for people.

    >>> [seconds(v) for v in (0.034, 4.2, 95, 7320)]
    ['34 ms', '4.2 s', '1 min 35 s', '2 h 02 min']
    """
    if value < 0.95:
        return f"{1000 * value:.0f} ms" if value else "0"
    if value < 59.5:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def smooth(points: Sequence[Point], window: int) -> list[Point]:
    """Return the mean over the last `window` points (a trailing mean, which does not look ahead).

    A long series gives the mean at about `MOST_POINTS` points, including the last: more points would look the same.
    """
    every = max(1, len(points) // MOST_POINTS)
    return [
        (x, math.fsum(y for _, y in points[max(0, i - window + 1) : i + 1]) / min(i + 1, window))
        for i, (x, _) in enumerate(points)
        if (len(points) - 1 - i) % every == 0
    ]


def thin(points: Sequence[Point], limit: int = MOST_POINTS) -> list[Point]:
    """Keep at most about `limit` points: the lowest and the highest of each stretch, in their order."""
    if len(points) <= limit:
        return list(points)
    size = math.ceil(len(points) / (limit // 2))
    kept: list[Point] = [points[0]]
    for start in range(0, len(points), size):
        stretch = range(start, min(start + size, len(points)))
        ends = sorted({min(stretch, key=lambda i: points[i][1]), max(stretch, key=lambda i: points[i][1])})
        kept += [points[i] for i in ends]
    return list(dict.fromkeys([*kept, points[-1]]))


def _axes(
    drawn: Sequence[Series], values: list[float], y_range: tuple[float | None, float | None], log: bool
) -> tuple[Axis, Axis]:
    xs = [x for s in drawn for x, _ in s.points]
    x_axis = linear_axis_exact(min(xs), max(xs))
    positive = [value for value in values if value > 0]
    if log and positive:
        return x_axis, log_axis(min(positive), max(positive), HEIGHT - BOTTOM, TOP)
    low = min(values) if y_range[0] is None else min(y_range[0], *values)
    high = max(values) if y_range[1] is None else max(y_range[1], *values)
    return x_axis, linear_axis(low, high, HEIGHT - BOTTOM, TOP)


def _round_step(rough: float, *, whole: bool = False) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    sizes = (1, 2, 5, 10) if whole else (1, 2, 2.5, 5, 10)
    return next(size * power for size in sizes if size * power >= rough * (1 - 1e-9))


def grid(x_axis: Axis, y_axis: Axis, form: Format, x_form: Format = "{:g}".format) -> str:
    """Draw horizontal lines at the y ticks, and the labels of the ticks of both axes."""
    parts = []
    for tick in y_axis.ticks:
        y = y_axis(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{escaped(form(tick))}</text>')
    for tick in x_axis.ticks:
        text = f'y="{HEIGHT - 8}" text-anchor="middle">{escaped(x_form(tick))}</text>'
        parts.append(f'<text class="tick" x="{x_axis(tick)}" {text}')
    return "\n".join(parts)


def _line(series: Series, x_axis: Axis, y_axis: Axis) -> str:
    parts, colour = [], f"s{series.colour}"
    if series.band:
        band = spread(series.band, MOST_POINTS)
        edge = [(x, high) for x, _, high in band] + [(x, low) for x, low, _ in reversed(band)]
        parts.append(f'<polygon class="band {colour}" points="{_path(edge, x_axis, y_axis)}"/>')
    points = thin(series.points)
    if len(points) == 1:
        parts.append(f'<circle class="dot {colour}" cx="{x_axis(points[0][0])}" cy="{y_axis(points[0][1])}" r="3"/>')
    else:
        parts.append(f'<polyline class="line {colour}" points="{_path(points, x_axis, y_axis)}"/>')
    return "\n".join(parts)


def _whiskers(series: Series, x_axis: Axis, y_axis: Axis) -> str:
    parts, colour = [], f"s{series.colour}"
    if len(series.points) > 1:
        parts.append(f'<polyline class="line faint {colour}" points="{_path(series.points, x_axis, y_axis)}"/>')
    for x, low, high in series.band:
        at, bottom, top = x_axis(x), y_axis(low), y_axis(high)
        shape = f"M{at} {bottom}V{top}M{at - 4} {bottom}h8M{at - 4} {top}h8"
        parts.append(f'<path class="whisker {colour}" d="{shape}"/>')
    parts += [f'<circle class="dot {colour}" cx="{x_axis(x)}" cy="{y_axis(y)}" r="3.5"/>' for x, y in series.points]
    return "\n".join(parts)


def _path(points: Sequence[Point], x_axis: Axis, y_axis: Axis) -> str:
    return " ".join(f"{x_axis(x):g},{y_axis(y):g}" for x, y in points)


def _doubled(points: list[Point]) -> list[Point]:
    """Extend a single point by half a step to each side, so that it has an area."""
    return points if len(points) > 1 else [(points[0][0] - 0.5, points[0][1]), (points[0][0] + 0.5, points[0][1])]


def spread(rows: Sequence, limit: int) -> list:
    """Keep at most `limit` rows, evenly spaced, including the first and the last."""
    if len(rows) <= limit:
        return list(rows)
    return [rows[round(i * (len(rows) - 1) / (limit - 1))] for i in range(limit)]


def picture(body: str, label: str, height: float = HEIGHT) -> str:
    """Return the SVG element around a plot, with a sentence for screen readers."""
    size = f'viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}"'
    return f'<svg class="chart" {size} role="img" aria-label="{escaped(label)}">\n{body}\n</svg>'
