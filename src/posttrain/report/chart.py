"""The curated plots, and a drawn one: its lines, its text for those who do not see it, the values to read off."""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from posttrain.report.svg import Series, compact, line_chart, percent

Form = Callable[[float], str]


@dataclass(frozen=True, kw_only=True)
class Plot:
    """What to draw: metric name -> legend, and how."""

    title: str
    metrics: Mapping[str, str]
    hint: str = ""
    form: Form = compact
    low: float | None = 0.0
    high: float | None = None
    log: bool = False
    side_by_side: bool = False
    """Only of runs whose engines sample while they train: in the others these numbers say nothing."""
    invert: bool = False
    """Draw 1 - value: the share with signal from the share without."""


@functools.cache
def plots() -> tuple[Plot, ...]:
    """Those of plots.yaml: the curated ones of a report."""
    told = yaml.safe_load((importlib.resources.files("posttrain.report") / "plots.yaml").read_text(encoding="utf-8"))
    forms = {"percent": percent, "compact": compact}
    return tuple(Plot(**{**entry, "form": forms[entry.get("form", "compact")]}) for entry in told)


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A drawn plot with what surrounds it."""

    title: str
    svg: str
    key: str
    """Ties the plot to its `data`."""
    hint: str = ""
    legend: Sequence[tuple[int, str, str]] = ()
    """(colour, name, last value)."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """x values and formatted y values by series, for reading off points."""
    names: Sequence[str] = ()
    """The metrics drawn here; the rest is drawn under "more metrics"."""
    flat: bool = False
    """Every line is constant: a number says as much as a plot."""


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
    """A plot of lines; `mark` is a limit with its name, `x_name` what x counts."""
    key = "".join(letter if letter.isalnum() or letter == "_" else "-" for letter in title.lower())
    svg = line_chart(
        lines,
        label=_spoken(title, lines, form, lambda x: f"step {x:g}" if x_name == "step" else f"{x_form(x)} {x_name}"),
        chart_id=key,
        form=form,
        y_range=y_range,
        log=log,
        mark=mark,
        x_form=x_form,
    )
    legend = [(line.colour, line.name, form(line.points[-1][1])) for line in lines]
    flat = all(len({y for _, y in line.points}) == 1 and len(line.points) > 1 for line in lines)
    data = readings(lines, form)
    if x_name != "step":
        data["at"] = [f"{x_form(x)} {x_name}" for x in data["x"]]
    return Chart(title=title, svg=svg, key=key, hint=hint, legend=legend, data=data, names=names, flat=flat)


def _spoken(title: str, lines: Sequence[Series], form: Form, at: Form) -> str:
    """The plot for those who do not see it."""
    parts = [title]
    for line in lines:
        low, high = min(line.points, key=lambda p: p[1]), max(line.points, key=lambda p: p[1])
        first, last = line.points[0], line.points[-1]
        parts.append(
            f"{line.name}: {form(first[1])} at {at(first[0])}, {form(last[1])} at {at(last[0])}, "
            f"lowest {form(low[1])} at {at(low[0])}, highest {form(high[1])} at {at(high[0])}"
        )
    return ". ".join(parts)


def readings(lines: Sequence[Series], form: Form, limit: int = 400) -> dict[str, Any]:
    """Values to read off: x ascending, one formatted text per series and x."""
    xs = sorted({x for line in lines for x, _ in line.points})
    if len(xs) > limit:
        xs = [xs[round(i * (len(xs) - 1) / (limit - 1))] for i in range(limit)]
    found = []
    for line in lines:
        values = dict(line.points)
        bands = {x: (low, high) for x, low, high in line.band} if line.dots else {}
        texts = [form(values[x]) if x in values else "" for x in xs]
        texts = [
            f"{t} ({form(bands[x][0])} to {form(bands[x][1])})" if x in bands else t
            for t, x in zip(texts, xs, strict=True)
        ]
        found.append({"name": line.name, "text": texts})
    return {"x": xs, "series": found}
