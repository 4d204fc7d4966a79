"""The plots of the report: which metrics share a plot, and the sentence that says how to read it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

from posttrain.report.chart import Chart, Form, Plot, draw, key_of, plots
from posttrain.report.heldout import WORDS, headline_span, kind_of, measure_of
from posttrain.report.phases import PHASES, phase_rows, phase_sums, who_waits
from posttrain.report.spans import Span, span
from posttrain.report.store import RunRecord, mapping, number
from posttrain.report.svg import (
    IntervalRow,
    Series,
    compact,
    interval_bars,
    percent,
    seconds,
    smooth,
)
from posttrain.report.verdict import check_spans


def learning_charts(run: RunRecord) -> list[Chart]:
    """Return the curated plots in reading order, without those that have no data. Constant plots have `flat` set."""
    supervised = not run.series("reward")
    charts = [reward_chart(run), _heldout_chart(run), parts_chart(run)]
    curated = [plot for plot in plots() if not plot.side_by_side]
    curated = [plot for plot in curated if plot.title != "Groups with signal" or run.compares_groups]
    curated = sorted(curated, key=lambda plot: plot.title != "Loss") if supervised else curated
    charts += [plot_chart(run, plot, supervised) for plot in curated]
    charts.insert(3 if supervised else 9, _time_chart(run))
    charts[3:3] = reason_charts(run)
    return [chart for chart in charts if chart is not None]


def other_charts(run: RunRecord, drawn: Sequence[Chart]) -> list[Chart]:
    """Return one small plot for every recorded metric that is not in `drawn`."""
    known = {"step", "num_tokens", *(name for chart in drawn for name in chart.names)}
    charts = (
        plot_chart(run, Plot(title=name, metrics={name: name}, low=None)) for name in run.names() if name not in known
    )
    return [replace(chart, key=key_of(f"metric {chart.title}")) for chart in charts if chart is not None]


def heldout_bars(run: RunRecord) -> str:
    """Draw greedy, pass@k and majority@k with their intervals; the baseline is above the trained model."""
    sides = {name: mapping(run.evaluation.get(name)) for name in ("baseline", "trained")}
    measure = measure_of(*sides.values())
    rows = [
        _interval_row(label, {name: read(side) for name, side in sides.items()})
        for label, read in _measures(sides, measure)
    ]
    return _bars([row for row in rows if row], f"Held-out {measure} with intervals, baseline and trained", measure)


def check_bars(run: RunRecord) -> str:
    """Draw the independent check; the baseline is above the trained model."""
    found = check_spans(run.evaluation)
    rows = [_interval_row(label, {"baseline": before, "trained": after}) for label, before, after in found]
    shares = all(0 <= side.mean <= 1 for _, *sides in found for side in sides if side)
    return _bars([row for row in rows if row], "Independent check with intervals", "accuracy" if shares else "score")


def heldout_points(run: RunRecord) -> tuple[str, list[tuple[float, Span]]]:
    """Return (measure, [(step, span)]) for the evaluations in the run's events and the two in `evaluation.json`."""
    found: dict[float, Mapping[str, Any]] = {**run.evaluations}
    if run.metrics or found:
        ends = {"baseline": 0.0, "trained": float(max([*found, *(row["step"] for row in run.metrics)]))}
        for name, step in ends.items():
            if run.evaluation.get(name):
                found.setdefault(step, mapping(run.evaluation[name]))
    measure = measure_of(*found.values())
    spans = [(step, headline_span(found[step], measure)) for step in sorted(found)]
    return measure, [(step, value) for step, value in spans if value is not None]


def _measures(
    sides: Mapping[str, Mapping[str, Any]], measure: str
) -> list[tuple[str, Callable[[Mapping[str, Any]], Span | None]]]:
    """Return (label, function that reads the interval) for each bar of this measure."""
    readers: list[tuple[str, Callable[[Mapping[str, Any]], Span | None]]] = [
        (WORDS[kind_of(*sides.values())].short, lambda side: headline_span(side, measure))
    ]
    kind = kind_of(*sides.values())
    if kind == "policy pairs":
        return [
            *readers,
            ("per token", lambda side: span(side.get("accuracy_per_token"))),
            ("implicit", lambda side: span(mapping(side.get("implicit")).get("accuracy"))),
        ]
    if kind == "labels":
        return [*readers, ("implicit", lambda side: span(mapping(side.get("implicit")).get("auc")))]
    if kind != "answers":
        return readers
    if measure == "score":
        return [*readers, ("sampled", lambda side: span(mapping(side.get("sampled")).get("score")))]
    for kind in ("pass@k", "majority@k"):
        keys = {k for side in sides.values() for k in mapping(mapping(side.get("sampled")).get(kind))}
        for k in sorted((k for k in keys if str(k).isdigit()), key=int):
            if kind == "pass@k" or int(k) > 2:  # a vote of two is a coin toss: majority@1 and @2 equal pass@1

                def read(side: Mapping[str, Any], kind: str = kind, k: str = k) -> Span | None:
                    return span(mapping(mapping(side.get("sampled")).get(kind)).get(k))

                readers.append((kind.replace("@k", f"@{k}"), read))
    return readers


def _interval_row(label: str, sides: Mapping[str, Span | None]) -> IntervalRow | None:
    bars = [(name, s.mean, s.low, s.high) for name, s in sides.items() if s]
    return IntervalRow(label=label[:24], bars=bars) if bars else None


def _bars(rows: list[IntervalRow], label: str, measure: str) -> str:
    if not rows:
        return ""
    edges = [edge for row in rows for bar in row.bars for edge in bar[1:] if math.isfinite(edge)]
    if measure == "accuracy":
        return interval_bars(rows, label=_bars_label(label, rows, percent), form=percent, low=0.0, high=1.0)
    return interval_bars(
        rows, label=_bars_label(label, rows, compact), form=compact, low=min(0.0, *edges), high=max(0.0, *edges)
    )


def _bars_label(label: str, rows: Sequence[IntervalRow], form: Form) -> str:
    def shown(name: str, mean: float, low: float, high: float) -> str:
        between = f"{form(low)} to {form(high)}" if math.isfinite(high - low) else "no interval"
        return f"{name} {form(mean)} ({between})"

    values = "; ".join(f"{row.label}: " + ", ".join(shown(*bar) for bar in row.bars) for row in rows)
    return f"{label}. {values}"


def _heldout_chart(run: RunRecord) -> Chart | None:
    measure, spans = heldout_points(run)
    if len(spans) < 2:
        return None
    form, kind = percent if measure == "accuracy" else compact, kind_of(mapping(run.evaluation.get("baseline")))
    finite = [(x, s) for x, s in spans if math.isfinite(s.low) and math.isfinite(s.high)]
    line = Series(
        name=f"greedy {measure}" if kind == "answers" else measure,
        points=[(x, s.mean) for x, s in spans],
        band=[(x, s.low, s.high) for x, s in finite],
        colour=2,
        dots=True,
    )
    high = 1.0 if measure in ("accuracy", "auc") else None
    hint = f"{WORDS[kind].unit.capitalize()} that training never sees, with intervals."
    return draw("Held-out score", [line], form, hint, y_range=(0.0, high))


def plot_chart(run: RunRecord, plot: Plot, supervised: bool = False) -> Chart | None:
    lines, names = [], list(plot.metrics)
    for i, (name, legend) in enumerate(plot.metrics.items()):
        points = run.series(name)
        if points:
            points = [(x, 1 - y) for x, y in points] if plot.invert else points
            lines.append(Series(name=legend, points=points, colour=i + 1, band=_length_band(run, name, plot)))
    if not lines:
        return None
    if plot.title == "Completion length":
        names += ["completions/min_length", "completions/max_length"]
    return draw(
        plot.title,
        lines,
        plot.form,
        "The loss that training minimises." if supervised and plot.title == "Loss" else plot.hint,
        y_range=(plot.low, plot.high),
        log=plot.log,
        mark=_mark(run, plot.title),
        names=names,
    )


def _length_band(run: RunRecord, name: str, plot: Plot) -> list[tuple[float, float, float]]:
    if name != "completions/mean_length" or plot.side_by_side:
        return []
    longest = dict(run.series("completions/max_length"))
    return [(x, low, longest[x]) for x, low in run.series("completions/min_length") if x in longest]


def _mark(run: RunRecord, title: str) -> tuple[float, str] | None:
    settings = {
        "Gradient norm": ("train.max_grad_norm", "clipped above"),
        "Completion length": ("sampling.max_completion_length", "limit"),
        "Age of the tokens": ("train.max_staleness", "older are masked"),
    }
    if title not in settings:
        return None
    value = number(run.setting(settings[title][0]))
    return (value, settings[title][1]) if value else None


def _time_chart(run: RunRecord) -> Chart | None:
    rows = phase_rows(run)
    if not rows:
        return None
    took = [any(values[i] for _, values in rows) for i in range(len(PHASES) + 1)]
    rows = [(step, list(compress(values, took))) for step, values in rows]
    names = list(compress([*PHASES.values(), "other"], took))
    lines = [Series(name=name, points=[(x, v[i]) for x, v in rows], colour=i + 1) for i, name in enumerate(names)]
    total = math.fsum(y for line in lines for _, y in line.points) or 1.0
    sums_of_phases = phase_sums(run)
    waits = who_waits(sums_of_phases)
    hint = "Seconds by phase."
    if waited := sums_of_phases["wait_for_groups"]:
        hint = f"The trainer waits {percent(waited / total)} of the time for groups, while engines sample."
    elif waits is not None:
        hint = (
            f"The trainer waits {percent(waits.samples)} of the time for samples and {percent(waits.rewards)} for "
            f"late rewards; the sampler waits {percent(waits.update)} for the "
            f"update{' and the check' if PHASES['check'] in names else ''}."
        )
    return Chart(
        title="Time per step",
        key="time",
        lines=lines,
        form=seconds,
        hint=hint,
        stacked=True,
        names=[*(f"time/{name}" for name in PHASES), "time/score", "time/step"],
    )


# --- rewards of the answers ------------------------------------------------------------------------------------------


COLOURS = 6
"""Number of colours for lines. If a reward has more reasons, the rarest are under "more metrics"."""


def reward_chart(run: RunRecord) -> Chart | None:
    points = run.series("reward")
    if not points:
        return None
    window = max(1, len(points) // 15)
    lines = [Series(name="each step", points=points, colour=6 if window > 1 else 1)]
    if window > 1:
        mean = smooth(points, window)
        lines.append(Series(name=f"mean of {window} steps", points=mean, colour=1, derived=True))
    return draw("Reward", lines, compact, "Mean over all answers of a step.", names=["reward"])


def parts_chart(run: RunRecord) -> Chart | None:
    names = [name for name in run.names("rewards/") if name.endswith("/mean")]
    deviations = [name for name in run.names("rewards/") if name.endswith("/std")]
    lines = [
        Series(
            name=name.removeprefix("rewards/").removesuffix("/mean"), points=run.series(name), colour=i % COLOURS + 1
        )
        for i, name in enumerate(names)
    ]
    lines = [line for line in lines if line.points]
    if not lines or (len(lines) == 1 and lines[0].points == run.series("reward")):
        return None
    return draw(
        "Reward by component",
        lines,
        compact,
        "Before weighting. A reward that does not apply to an answer is left out.",
        names=[*names, *deviations],
    )


def reason_charts(run: RunRecord) -> list[Chart]:
    """Return a chart for each reward that gives reasons: the share of the answers with each reason at each step."""
    names: dict[str, list[str]] = {}
    for name in run.names("rewards/"):
        label, found, _ = name.removeprefix("rewards/").partition("/reason/")
        if found:
            names.setdefault(label, []).append(name)
    return [_reason_chart(run, label, found) for label, found in names.items()]


def _reason_chart(run: RunRecord, label: str, names: Sequence[str]) -> Chart:
    """Draw the reasons of one reward. A reason without a value at a step counts as 0 there: no answer had it."""
    shares = {name: dict(run.series(name)) for name in names}
    steps = sorted({step for share in shares.values() for step in share})
    drawn = sorted(names, key=lambda name: -sum(shares[name].values()))[:COLOURS]
    lines = [
        Series(
            name=name.rpartition("/")[2].replace("_", " "),
            points=[(step, shares[name].get(step, 0.0)) for step in steps],
            colour=colour,
        )
        for colour, name in enumerate(drawn, start=1)
    ]
    hint = "Share of the answers by the reason of their verdict."
    return draw(f"Why: {label}", lines, percent, hint, y_range=(0.0, 1.0), names=drawn)
