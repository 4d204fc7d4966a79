"""The plots of a sweep, from what `results.json` holds: the score against each knob, with what collapsed and where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posttrain.lab.experiments.sweep.knobs import Knob, knob_of
from posttrain.report.scatter import Across, Mark, Shape, scatter_chart
from posttrain.report.svg import Series, compact, line_chart

Found = Mapping[str, Any]
_SHAPES: Mapping[str, Shape] = {"finished": "dot", "pruned": "faint", "collapsed": "cross"}


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
