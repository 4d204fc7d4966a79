"""Calibration of a reward model: the reliability plot, and sentences about it.

A point is a bin of held-out answers, pairs or steps. It shows the mean prediction (x) and the observed value (y), with
an interval. On the diagonal both agree. For pairs, the prediction is sigmoid(|margin|), the probability that their
order is right. Below the diagonal the model is overconfident.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from posttrain.report.spans import show_span, span
from posttrain.report.store import RunRecord, mapping, number
from posttrain.report.svg import Series, agreement_chart, compact, percent
from posttrain.report.text import escaped

SIDES = (("before training", "baseline", 6), ("after", "trained", 1))
"""(name, key in evaluation.json, colour) of the two measurements."""
PLOTTED = {
    "pairs": ("Share of pairs in the right order, by the model's confidence in their order.", percent, (0.5, 1.0)),
    "steps": (
        "Share of steps that are right, by the predicted probability that they are.",
        percent,
        (0.0, 1.0),
    ),
    "ratings": ("Mean given rating of the answers, by their predicted rating.", compact, None),
}
"""Unit that is counted -> (how to read the plot, format of its numbers, range of the predictions)."""


def calibration_section(run: RunRecord) -> str:
    """Return the section of the report as HTML; "" if the run did not measure calibration."""
    sides = {key: mapping(run.evaluation.get(key)) for _, key, _ in SIDES}
    counted = next((kind for kind in PLOTTED if any(kind in side for side in sides.values())), None)
    series = [
        _series(name, mapping(sides[key].get("calibration")), colour) for name, key, colour in SIDES if sides[key]
    ]
    series = [line for line in series if line.points]
    if counted is None or not series:
        return ""
    hint, form, ends = PLOTTED[counted]
    values = [value for line in series for x, y in line.points for value in (x, y)]
    across, up = (ends, (0.0, 1.0)) if ends else 2 * ((min(values), max(values)),)
    svg = agreement_chart(series, label=_spoken(hint, series, form), form=form, across=across, up=up)
    legend = "".join(f'<li><i class="key s{line.colour}"></i>{escaped(line.name)}</li>' for line in series)
    figure = (
        f'<figure class="card"><h3>Predicted against found</h3><p class="hint">{escaped(hint)} Dashed: both agree.</p>'
        f'<ul class="legend-line">{legend}</ul>{svg}</figure>'
    )
    sentences = "".join(f"<p>{escaped(sentence)}</p>" for sentence in calibration_sentences(sides["trained"]))
    return f'<h2>Calibration</h2>{sentences}<div class="charts">{figure}</div>'


def calibration_sentences(measured: Mapping[str, Any]) -> list[str]:
    """Return sentences about a reward model from evaluation.json: the numbers besides the headline."""
    sentences = []
    pearson, spearman, auc = (span(measured.get(name)) for name in ("pearson", "spearman", "auc"))
    if pearson is not None and spearman is not None:
        shown, ranks = show_span("score", pearson), show_span("score", spearman)
        sentences.append(f"Predicted and given ratings correlate with {shown}, their ranks with {ranks}.")
    if auc is not None and "steps" in measured:
        text = f"A right step scores above a wrong one with probability {show_span('auc', auc)}; 0.5 is chance."
        whole = span(measured.get("answer_auc"))
        text += f" Whole answers without a wrong step, above the others: {show_span('auc', whole)}." if whole else ""
        sentences.append(text)
    calibration, brier = mapping(measured.get("calibration")), span(measured.get("brier"))
    error, chance = span(calibration.get("error")), number(calibration.get("error_by_chance"))
    if error is None or chance is None:
        return sentences
    text = f"Expected calibration error {show_span('accuracy', error)}, where right probabilities would show about "
    text += f"{percent(chance)} by chance"
    text += "." if error.low > 0 else ": no sign that they are wrong."
    return [*sentences, text + (f" Brier score {show_span('score', brier)}; 0.25 is a coin." if brier else "")]


def _series(name: str, calibration: Mapping[str, Any], colour: int) -> Series:
    bins = [(number(b.get("predicted")), span(b.get("found"))) for b in map(mapping, calibration.get("bins") or [])]
    known = [(x, found) for x, found in bins if x is not None and found is not None]
    return Series(
        name=name,
        points=[(x, found.mean) for x, found in known],
        band=[(x, found.low, found.high) for x, found in known if found.finite],
        colour=colour,
        dots=True,
    )


def _spoken(hint: str, series: list[Series], form: Callable[[float], str]) -> str:
    """Return the plot in words, for screen readers."""
    lines = (f"{line.name}: " + ", ".join(f"{form(x)} {form(y)}" for x, y in line.points) for line in series)
    return f"{hint} {'; '.join(lines)}"
