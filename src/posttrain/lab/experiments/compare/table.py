"""A comparison for the terminal."""

from __future__ import annotations

import math

from posttrain.lab.experiments.compare.analysis import Analysis, Arm
from posttrain.lab.experiments.compare.verdict import verdict
from posttrain.report.svg import compact, percent, seconds


def render(found: Analysis) -> str:
    """A line per arm, then what follows from it."""
    head, rows = table(found)
    widths = [max(len(line[column]) for line in [head, *rows]) for column in range(len(head))]
    lines = ["  ".join(map(_cell, line, widths, range(len(line)))) for line in [head, *rows]]
    return "\n".join([*lines, "", *verdict(found)])


def _cell(text: str, width: int, column: int) -> str:
    return text.rjust(width) if column else text.ljust(width)


def table(found: Analysis) -> tuple[list[str], list[list[str]]]:
    """Titles and cells; a column that no arm has anything in is left out."""
    columns = {
        "arm": [arm.name for arm in found.arms],
        f"held-out {found.measure}": [show_score(found, arm) for arm in found.arms],
        "runs": [f"{len(arm.finished)} of {len(arm.runs)}" for arm in found.arms],
        "collapsed": [str(len(arm.collapsed)) for arm in found.arms],
        "steps": [show(arm.mean("steps")) for arm in found.arms],
        "tokens": [show(arm.mean("tokens")) for arm in found.arms],
        "seconds": [show_seconds(arm.mean("seconds")) for arm in found.arms],
        f"tokens to {found.design.target or 0:g}": [_to_target(found, arm) for arm in found.arms],
        "peak GB": [show(arm.mean("peak memory, GB")) for arm in found.arms],
        "entropy left": [_percent(arm.mean("entropy_kept")) for arm in found.arms],
        "largest KL": [show(arm.mean("largest KL within a step")) for arm in found.arms],
        "spikes": [show(arm.mean("spikes")) for arm in found.arms],
        **{name: [show(arm.mean(name)) for arm in found.arms] for name in found.design.measures},
    }
    shown = {title: cells for title, cells in columns.items() if any(cell not in ("", "-") for cell in cells)}
    return list(shown), [list(row) for row in zip(*shown.values(), strict=True)]


def show_score(found: Analysis, arm: Arm) -> str:
    """`94.2% (91.0% to 97.5%)`"""
    form = (lambda value: f"{100 * value:.1f}%") if found.share else compact
    if not arm.score.seeds:
        return "-"
    if not math.isfinite(arm.score.low) or arm.score.seeds < 2:
        return form(arm.score.mean)
    return f"{form(arm.score.mean)} ({form(arm.score.low)} to {form(arm.score.high)})"


def show(value: float | None) -> str:
    return "-" if value is None else compact(value)


def show_seconds(value: float | None) -> str:
    return "-" if value is None else seconds(value)


def _percent(value: float | None) -> str:
    return "-" if value is None else percent(value)


def _to_target(found: Analysis, arm: Arm) -> str:
    """Tokens, in the mean of the runs that reached it."""
    tokens, reached = arm.mean("tokens to the target"), arm.reached()
    if found.design.target is None:
        return "-"
    if tokens is None:
        return "never"
    return compact(tokens) + ("" if reached == len(arm.runs) else f" ({reached} of {len(arm.runs)})")
