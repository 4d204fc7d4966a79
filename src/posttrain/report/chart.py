"""The curated plots, and one plot in all its forms: data for the page's script, SVG picture, words and table."""

from __future__ import annotations

import functools
import importlib.resources
import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml

from posttrain.report.svg import Point, Series, compact, line_chart, percent, seconds, spread, stacked_chart, thin
from posttrain.report.text import visible

Form = Callable[[float], str]
FORMS: Mapping[Form, str] = {percent: "percent", compact: "compact", seconds: "seconds"}
"""Format of values -> its name in the page's script (assets/plot.js has the same three)."""
MOST_POINTS = 1000
"""Maximum points of a line on a page. For a longer line, the script gets the minimum and maximum of each stretch;
metrics.jsonl has all points."""


@dataclass(frozen=True, kw_only=True)
class Plot:
    """The lines of a chart and how to draw them: metric name -> legend."""

    title: str
    metrics: Mapping[str, str]
    hint: str = ""
    form: Form = compact
    low: float | None = 0.0
    high: float | None = None
    log: bool = False
    side_by_side: bool = False
    """Draw only for asynchronous runs, whose engines sample during training: for others, the metrics mean nothing."""
    invert: bool = False
    """Draw 1 - value, such as the share of groups with signal from the share without."""


@functools.cache
def plots() -> tuple[Plot, ...]:
    """Return the curated plots of a report, from plots.yaml."""
    told = yaml.safe_load((importlib.resources.files("posttrain.report") / "plots.yaml").read_text(encoding="utf-8"))
    forms = {"percent": percent, "compact": compact}
    return tuple(Plot(**{**entry, "form": forms[entry.get("form", "compact")]}) for entry in told)


class Values(NamedTuple):
    """A row of the table of values: one line of a plot, formatted for people."""

    name: str
    first: str
    last: str
    lowest: str
    highest: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A plot: its lines, title, axes and legend."""

    title: str
    key: str
    """Key that links the figure on a page to its `data`."""
    lines: Sequence[Series]
    form: Form = compact
    hint: str = ""
    y_range: tuple[float | None, float | None] = (0.0, None)
    """Minimum range of the y axis; None: as large as the values need."""
    log: bool = False
    mark: tuple[float, str] | None = None
    """A limit to draw: (y value, name)."""
    names: Sequence[str] = ()
    """Metrics that this plot draws. The report draws all others under "more metrics"."""
    x_name: str = "step"
    """Unit of x. The page can turn steps into tokens and seconds."""
    x_form: Form = "{:g}".format
    stacked: bool = False
    """True: the lines are parts of a whole, stacked on each other. All have the same x values."""

    @property
    def flat(self) -> bool:
        """Is every line constant? Then a number says as much as a plot."""
        return not self.stacked and all(
            len({y for _, y in line.points}) == 1 and len(line.points) > 1 for line in self.lines
        )

    @property
    def legend(self) -> list[tuple[int, str, str]]:
        """(colour, name, last value) of each line; for a stacked plot, its share of the whole instead."""
        said = self._shares() if self.stacked else [self.form(line.points[-1][1]) for line in self.lines]
        return [(line.colour, line.name, value) for line, value in zip(self.lines, said, strict=True)]

    @property
    def svg(self) -> str:
        """The plot as an SVG picture, for a page without scripts."""
        if self.stacked:
            rows = [(x, [line.points[i][1] for line in self.lines]) for i, (x, _) in enumerate(self.lines[0].points)]
            return stacked_chart([line.name for line in self.lines], rows, label=self.words, form=self.form)
        return line_chart(
            self.lines,
            label=self.words,
            form=self.form,
            y_range=self.y_range,
            log=self.log,
            mark=self.mark,
            x_form=self.x_form,
        )

    @property
    def words(self) -> str:
        """The plot in words, for screen readers."""
        if self.stacked:
            shares = (f"{line.name} {share}" for line, share in zip(self.lines, self._shares(), strict=True))
            return f"{self.title}. {self.hint} {', '.join(shares)}"
        parts = (
            f"{found.name}: {found.first}, {found.last}, lowest {found.lowest}, highest {found.highest}"
            for found in self.values()
        )
        return ". ".join([self.title, *parts])

    def values(self) -> list[Values]:
        """Return the first, last, lowest and highest point of each line, such as `0.25 at step 40`."""
        found = []
        for line in self.lines:
            low, high = min(line.points, key=lambda p: p[1]), max(line.points, key=lambda p: p[1])
            found.append(Values(line.name, *map(self._at, (line.points[0], line.points[-1], low, high))))
        return found

    def data(self) -> dict[str, Any]:
        """Return the data that the script of a page draws, with six significant digits."""
        found = {
            "title": visible(self.title),
            "x": self.x_name,
            "form": FORMS.get(self.form, "compact"),
            "range": self.y_range,
            "series": [self._line(line) for line in self.lines],
        }
        marked = {"mark": {"at": self.mark[0], "name": visible(self.mark[1])}} if self.mark else {}
        return found | marked | ({"log": True} if self.log else {}) | ({"stacked": True} if self.stacked else {})

    def _at(self, point: Point) -> str:
        x, y = point
        return f"{self.form(y)} at {f'step {x:g}' if self.x_name == 'step' else f'{self.x_form(x)} {self.x_name}'}"

    def _shares(self) -> list[str]:
        sums = [math.fsum(y for _, y in line.points) for line in self.lines]
        total = math.fsum(sums) or 1.0
        return [f"{part / total:.0%}" for part in sums]

    def _line(self, line: Series) -> dict[str, Any]:
        points = spread(line.points, MOST_POINTS) if self.stacked else thin(line.points, MOST_POINTS)
        told: dict[str, Any] = {"name": visible(line.name), "colour": line.colour}
        told |= {"x": [_short(x) for x, _ in points], "y": [_short(y) for _, y in points]}
        if line.band:
            ends = {x: (low, high) for x, low, high in line.band}
            told |= {
                side: [_short(ends[x][place]) if x in ends else None for x, _ in points]
                for place, side in enumerate(("low", "high"))
            }
        facts = {"dots": line.dots, "derived": line.derived, "clock": line.clock}
        return told | {name: fact for name, fact in facts.items() if fact}


def draw(
    title: str,
    lines: Sequence[Series],
    form: Form,
    hint: str,
    *,
    y_range: tuple[float | None, float | None] = (0.0, None),
    log: bool = False,
    mark: tuple[float, str] | None = None,
    names: Sequence[str] = (),
    x_form: Form = "{:g}".format,
    x_name: str = "step",
) -> Chart:
    """Return a plot of lines. Its key comes from its title."""
    return Chart(
        title=title,
        key=key_of(title),
        lines=lines,
        form=form,
        hint=hint,
        y_range=y_range,
        log=log,
        mark=mark,
        names=names,
        x_form=x_form,
        x_name=x_name,
    )


def key_of(title: str) -> str:
    """Return a key for a file name and an attribute. A title that is not one of ours gets a checksum, to be unique.

    >>> key_of("Held-out score"), key_of("rewards/a/mean")
    ('held-out-score', 'rewards-a-mean-3172486c')
    """
    key = re.sub(r"[^a-z0-9_]", "-", title.lower())
    if re.fullmatch(r"[A-Z][a-z0-9_ -]*", title):
        return key
    return f"{key}-{zlib.crc32(title.encode(errors='replace')):08x}"


def _short(value: float) -> float:
    """Return the value with six significant digits; a whole number unchanged."""
    return int(value) if value == int(value) else float(f"{value:.6g}")
