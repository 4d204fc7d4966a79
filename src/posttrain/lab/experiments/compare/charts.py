"""The plots of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from posttrain.lab.experiments.compare.analysis import Analysis, Arm
from posttrain.lab.experiments.compare.estimates import Estimate
from posttrain.lab.experiments.compare.outcomes import Point
from posttrain.report.chart import Chart, draw
from posttrain.report.scatter import Spot, frontier_chart
from posttrain.report.svg import IntervalRow, Series, compact, interval_bars, percent, seconds

FEW = 2
"""Up to this number of seeds, a chart shows a dot per seed instead of an interval."""
COLOURS = 5
"""Number of colours for arms. The sixth arm has the first one's colour again."""


def colour_of(found: Analysis, arm: Arm) -> int:
    return [one.name for one in found.arms].index(arm.name) % COLOURS + 1


def score_bars(found: Analysis) -> str:
    """Draw the held-out score of each arm with its interval."""
    measured = [arm for arm in found.arms if arm.score.seeds]
    if not measured:
        return ""
    rows = [_row(arm.name, arm.score, list(scores_of(arm).values())) for arm in measured]
    ends = _edges(rows)
    low, high = (0.0, 1.0) if found.share else (min(0.0, *ends), max(0.0, *ends))
    return interval_bars(rows, label=_spoken(found), form=_form(found), low=low, high=high)


def difference_bars(found: Analysis) -> str:
    """Draw each pair's difference with its interval. 0 means no difference."""
    pairs = [pair for pair in found.pairs if pair.estimate.seeds > 1]
    if not pairs:
        return ""

    def form(value: float) -> str:
        text = f"{100 * value:+.1f}" if found.share else f"{value:+.3g}"
        return text.replace("-", "−") if value else "0"

    scores = {arm.name: scores_of(arm) for arm in found.arms}
    rows = []
    for pair in pairs:
        first, second = scores[pair.first], scores[pair.second]
        apart = [first[seed] - second[seed] for seed in first if seed in second]
        rows.append(_row(f"{pair.first} − {pair.second}", pair.estimate, apart))
    ends = _edges(rows)
    spoken = "; ".join(
        f"{p.first} minus {p.second}: {form(p.estimate.mean)}, from {form(low)} to {form(high)}"
        for p in pairs
        for low, high in [_ends(p.estimate)]
    )
    return interval_bars(rows, label=f"Differences. {spoken}", form=form, low=min(0.0, *ends), high=max(0.0, *ends))


def scores_of(arm: Arm) -> dict[int, float]:
    """Map seeds to scores, for the finished runs."""
    return {run.seed: run.score for run in arm.finished if run.score is not None}


def _row(name: str, estimate: Estimate, values: Sequence[float]) -> IntervalRow:
    """Return a row with an interval, or with dots if there are so few values that the interval would fill the plot."""
    few = 1 < len(values) <= FEW
    bars = [("trained", estimate.mean, *_ends(estimate))]
    return IntervalRow(label=_short(name), bars=bars, dots=values if few else ())


def _edges(rows: Sequence[IntervalRow]) -> list[float]:
    """Return the values that the axis must include."""
    bars = (edge for row in rows if not row.dots for _, _, *ends in row.bars for edge in ends)
    return [*bars, *(value for row in rows for value in row.dots)]


def learning_plots(found: Analysis) -> list[Chart]:
    """Plot the held-out score against tokens, seconds and steps."""
    hints = {
        "tokens": "Cumulative prompt and completion tokens of all rows.",
        "seconds": "Time in steps, without evaluations." + (" Not comparable, see above." if _noisy(found) else ""),
        "steps": "One step is one batch.",
    }
    forms: dict[str, Callable[[float], str]] = {"tokens": compact, "seconds": compact, "steps": "{:g}".format}
    charts = []
    for unit, hint in hints.items():
        lines = [line for arm in found.arms if (line := _line(found, arm, unit)) is not None]
        if lines and any(len(line.points) > 1 for line in lines):
            ends = (0.0, 1.0) if found.share else (None, None)
            target = found.design.target
            charts.append(
                draw(
                    f"Against {unit}",
                    lines,
                    _form(found),
                    hint,
                    y_range=ends,
                    mark=None if target is None else (target, "target"),
                    x_form=forms[unit],
                    x_name=unit,
                )
            )
    return charts


def cost_plot(found: Analysis) -> tuple[str, str]:
    """Return a plot of quality against cost, and a text that defines cost."""
    unit, what = _cost_unit(found)
    spots = [
        Spot(
            name=_short(arm.name, 14),
            x=cost,
            y=arm.score.mean,
            interval=_ends(arm.score),
            colour=colour_of(found, arm),
            steady=not arm.lost and not arm.collapsed,
        )
        for arm in found.arms
        if arm.score.seeds and (cost := arm.mean(unit)) is not None
    ]
    if len(spots) < 2:
        return "", ""
    form = seconds if unit == "seconds" else compact
    spoken = "; ".join(f"{s.name}: {what} {form(s.x)}, held out {_form(found)(s.y)}" for s in spots)
    plot = frontier_chart(
        spots,
        label=f"Quality against cost. {spoken}",
        x_name=what,
        form=_form(found),
        x_form=form,
        lower=found.lower,
        y_range=(0.0, 1.0) if found.share else None,
    )
    noisy = " Not comparable, see above." if unit == "seconds" and _noisy(found) else ""
    return plot, f"Cost is {what}, the mean over the runs.{noisy}"


def _cost_unit(found: Analysis) -> tuple[str, str]:
    """Return the unit of cost in which runs with this budget can differ, and its name."""
    if found.design.budget.unit == "seconds" or found.conditions.get("tokens_note"):
        return "tokens", "tokens of a run"
    return "seconds", "seconds in steps"


def _line(found: Analysis, arm: Arm, unit: str) -> Series | None:
    curves = [run.curve for run in arm.finished if run.curve]
    if not curves:
        return None
    points = []
    for column in _columns(curves):
        scores = [point.score for point in column]
        x = fmean(float(getattr(point, "step" if unit == "steps" else unit)) for point in column)
        points.append((x, fmean(scores), min(scores), max(scores)))
    return Series(
        name=arm.name,
        points=[(x, mean) for x, mean, _, _ in points],
        band=[(x, low, high) for x, _, low, high in points] if len(curves) > 1 else (),
        colour=colour_of(found, arm),
    )


def _columns(curves: Sequence[Sequence[Point]]) -> list[list[Point]]:
    """Group the k-th evaluations of all seeds. The last group holds the evaluations after training."""
    before = min(len(curve) for curve in curves) - 1
    return [[curve[place] for curve in curves] for place in range(before)] + [[curve[-1] for curve in curves]]


def _ends(score: Estimate) -> tuple[float, float]:
    """Return the ends of the interval. Without an interval, both ends are the mean."""
    return (score.low, score.high) if score.has_interval else (score.mean, score.mean)


def _form(found: Analysis) -> Callable[[float], str]:
    return percent if found.share else compact


def _noisy(found: Analysis) -> bool:
    return "not comparable" in str(found.conditions.get("seconds_note", ""))


def _spoken(found: Analysis) -> str:
    form = _form(found)
    parts = [f"{arm.name} {form(arm.score.mean)}" for arm in found.arms if arm.score.seeds]
    return f"Held-out {found.measure}: {', '.join(parts)}"


def _short(name: str, longest: int = 22) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}…"
