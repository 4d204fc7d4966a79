"""The report of an asynchronous run, whose engines sample during training: staleness of tokens and waiting times."""

from __future__ import annotations

import statistics
from typing import Any

from posttrain.report.chart import Chart, draw, plots
from posttrain.report.charts import plot_chart
from posttrain.report.note import Note
from posttrain.report.phases import ENGINES_IDLE, waited_for_groups
from posttrain.report.store import RunRecord, number
from posttrain.report.svg import Series, percent

MUCH_MASKED = 0.01
MUCH_WAITING = 0.05
"""Shares above which the notes advise to change a setting."""


def samples_beside(run: RunRecord) -> bool:
    return bool(_steps(run))


def _steps(run: RunRecord) -> list[dict[str, Any]]:
    return [row for row in run.metrics if number(row.get(ENGINES_IDLE)) is not None]


def side_by_side_charts(run: RunRecord) -> list[Chart]:
    """Return the charts of an asynchronous run; an empty list for a synchronous run."""
    if not samples_beside(run):
        return []
    drawn = (plot_chart(run, plot) for plot in plots() if plot.side_by_side)
    return [_waits_chart(run), *(chart for chart in drawn if chart is not None)]


def _waits_chart(run: RunRecord) -> Chart:
    trainer = [(row["step"], waited_for_groups(row)) for row in _steps(run)]
    lines = [
        Series(name="trainer, for groups", points=trainer, colour=1),
        Series(name="engines, for something to sample", points=run.series(ENGINES_IDLE), colour=2),
    ]
    hint = "Shares of their time. Engines also wait while they load weights or start up."
    return draw("Who waits", lines, percent, hint, y_range=(0.0, 1.0), names=[ENGINES_IDLE])


def staleness_note(run: RunRecord) -> Note | None:
    """Note the age of the tokens, and what to change if too many were masked."""
    if not samples_beside(run):
        return None
    shares, means, oldest = ([y for _, y in run.series(f"staleness/{name}")] for name in ("masked", "mean", "max"))
    if not shares or not means or not oldest:
        return None
    masked = statistics.fmean(shares)
    age = f"{statistics.fmean(means):.1f} versions old on average, {max(oldest):.0f} at most"
    if masked > MUCH_MASKED:
        text = f"Tokens were {age}. Raise train.max_staleness, or lower train.run_ahead."
        return Note("warn", f"{percent(masked)} of the tokens were too old to train on", text)
    text = f"Tokens were {age}; {percent(masked)} of them were masked."
    return Note("ok", "Almost no token was too old to train on", text)


def waiting_note(run: RunRecord) -> Note | None:
    """Note who waited, and what to change. The first three steps do not count, because everything starts up."""
    rows = _steps(run)[3:]
    if not rows:
        return None
    trainer = statistics.fmean(map(waited_for_groups, rows))
    engines = statistics.fmean(number(row.get(ENGINES_IDLE), 0.0) for row in rows)
    if trainer <= MUCH_WAITING:
        return None
    if engines > MUCH_WAITING:
        advice = "Both wait, so more groups should be in progress: raise train.run_ahead."
    else:
        advice = "The engines have no time left: raise rollout.engines, or sample fewer or shorter answers."
    text = f"Engines sampled nothing in {percent(engines)} of their time. {advice}"
    return Note("info", f"The trainer waited {percent(trainer)} of the time for groups", text)
