"""The plots of a sweep, from what `results.json` holds: the score against each knob, with what collapsed and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.lab.experiments.sweep.knobs import Knob, knob_of
from posttrain.report.scatter import Across, Mark, Shape, scatter_chart
from posttrain.report.svg import HEIGHT, WIDTH, Series, compact, line_chart
from posttrain.report.text import escaped

Found = Mapping[str, Any]
_SHAPES: Mapping[str, Shape] = {"finished": "dot", "pruned": "faint", "collapsed": "cross"}
_HEAD, _ROW = 44, HEIGHT + 34
_STYLE = """
text { font: 11.5px ui-sans-serif, system-ui, sans-serif; fill: #6b7280 } .head { font-size: 14px; font-weight: 600; fill: #1c1e22 }
.grid { stroke: #e3e3e0 } .mark { stroke: #8b9099; stroke-dasharray: 4 4 } .band { fill: #c2651a; opacity: .12 }
.dot.s1 { fill: #1f5fa8 } .dot.s6 { fill: #b4b9c1 } .whisker { fill: none; stroke-width: 1.8 } .whisker.s1 { stroke: #1f5fa8 } .whisker.s2 { stroke: #c2651a }
@media (prefers-color-scheme: dark) {
  text { fill: #9aa1ab } .head { fill: #e8e6e1 } .grid { stroke: #30343a } .dot.s1 { fill: #6ea8ea } .dot.s6 { fill: #5d646e }
  .whisker.s1 { stroke: #6ea8ea } .whisker.s2 { stroke: #eb9a55 } .band { fill: #eb9a55 }
}
"""  # noqa: E501


def knobs_of(found: Found) -> list[Knob]:
    return [knob_of(key, text) for key, text in found["settings"]["knobs"].items()]


def knob_chart(found: Found, knob: Knob) -> str:
    """Held-out score against one knob. Empty where nothing was measured."""
    trials = [trial for trial in found["trials"] if trial["outcome"] in _SHAPES and knob.key in trial["values"]]
    marks = [_mark(found, knob, trial) for trial in trials]
    default = found["default"].get(knob.key)
    label = f"{found['measure']} against {knob.key}: " + "; ".join(mark.title for mark in marks)
    at_default = (_place(knob, default), "default") if knob.holds(default) else None
    return scatter_chart(marks, _across(knob), label=label, region=_region(found, knob), line=at_default)


def _mark(found: Found, knob: Knob, trial: Found) -> Mark:
    is_best = found["best"] is not None and trial["number"] == found["best"]["number"]
    score = "nothing measured" if trial["score"] is None else f"{found['measure']} {trial['score']:.4g}"
    value = compact_value(trial["values"][knob.key])
    return Mark(
        x=_place(knob, trial["values"][knob.key]),
        y=trial["score"],
        shape="best" if is_best else _SHAPES[trial["outcome"]],
        title=f"trial {trial['number']}, {trial['outcome']}, {knob.key} = {value}, {score}",
    )


def compact_value(value: Any) -> str:
    return compact(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def _place(knob: Knob, value: Any) -> float:
    return float(knob.choices.index(value) if knob.kind == "choice" else value)


def _across(knob: Knob) -> Across:
    if knob.kind == "choice":
        return Across(low=0, high=1, names=[compact_value(choice) for choice in knob.choices])
    return Across(low=knob.low, high=knob.high, log=knob.kind == "log", whole=knob.whole)


def _region(found: Found, knob: Knob) -> tuple[float, float] | None:
    """Where trials collapse, if that is more than chance."""
    boundary = next((b for b in found["boundaries"] if b["key"] == knob.key and b["chance"] < 0.05), None)
    if boundary is None:
        return None
    if boundary["inside"] is None:
        place = next(n for n, choice in enumerate(knob.choices) if boundary["beyond"] == f"= {choice}")
        return place - 0.45, place + 0.45
    edge = boundary["at"]
    return (edge, knob.high) if boundary["beyond"].startswith("above") else (knob.low, edge)


def course_chart(found: Found) -> str:
    """Held-out score over the steps of every trial, the best one in colour."""
    best = found["best"]["number"] if found["best"] else None
    lines = [
        Series(name=f"trial {trial['number']}", points=trial["course"], colour=_colour(trial, best))
        for trial in sorted(found["trials"], key=lambda trial: trial["number"] == best)
        if len(trial["course"]) > 1
    ]
    text = f"held-out {found['measure']} of {len(lines)} trials over their steps"
    return line_chart(lines, label=text, y_range=(0.0, None))


def _colour(trial: Found, best: int | None) -> int:
    if trial["number"] == best:
        return 1
    return 2 if trial["outcome"] == "collapsed" else 6


def picture(found: Found) -> str:
    """All knobs in one picture that stands alone, for a page elsewhere."""
    rows: Sequence[tuple[Knob, str]] = [(knob, chart) for knob in knobs_of(found) if (chart := knob_chart(found, knob))]
    parts = [
        f'<text class="head" x="52" y="{_HEAD + n * _ROW + 14}">{escaped(knob.key)}</text>'
        f'<g transform="translate(0 {_HEAD + n * _ROW + 22})">{chart}</g>'
        for n, (knob, chart) in enumerate(rows)
    ]
    height = _HEAD + len(rows) * _ROW
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    legend = "dot: finished · pale: pruned · cross: collapsed · ring: the best · shaded: collapse"
    title = f"Held-out {found['measure']} of {len(found['trials'])} trials against each setting"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{_STYLE}</style>'
        f'<text class="head" x="52" y="18">{escaped(title)}</text><text x="52" y="36">{escaped(legend)}</text>'
        f"{''.join(parts)}</svg>\n"
    )
