"""The curves of a run as pictures that stand alone, beside the card of its model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from posttrain.report.chart import Chart
from posttrain.report.charts import learning_charts
from posttrain.report.store import RunRecord
from posttrain.report.svg import HEIGHT, WIDTH
from posttrain.report.text import escaped

MOST = 6
"""Pictures in a card; the report of the run has them all."""
_HEAD = 48
_COLOURS = ("#1f5fa8", "#c2651a", "#2f8a5b", "#7d55a6", "#b4467a", "#9aa1ab")
_STYLE = (
    "text { font: 11.5px ui-sans-serif, system-ui, sans-serif; fill: #6b7280 } "
    ".head { font-size: 15px; font-weight: 600; fill: #1c1e22 } .grid { stroke: #e3e3e0 } "
    ".line { fill: none; stroke-width: 2; stroke-linejoin: round } .whisker { fill: none; stroke-width: 1.6 } "
    + " ".join(
        f".line.s{i}, .whisker.s{i} {{ stroke: {c} }} .dot.s{i}, .key.s{i} {{ fill: {c} }} "
        f".band.s{i}, .area.s{i} {{ fill: {c}; fill-opacity: .2; stroke: none }}"
        for i, c in enumerate(_COLOURS, start=1)
    )
    + " .whisker { stroke: #c2651a } .paper { fill: #ffffff }"
)


def write_plots(run: RunRecord, folder: Path) -> list[tuple[str, str]]:
    """Write the run's first curves that move into `folder/plots`; returns (file, title) of each."""
    charts = [chart for chart in learning_charts(run) if not chart.flat][:MOST]
    if charts:
        (folder / "plots").mkdir()
    written = []
    for chart in charts:
        name = f"plots/{chart.key}.svg"
        (folder / name).write_text(picture(chart), encoding="utf-8")
        written.append((name, chart.title))
    return written


def picture(chart: Chart) -> str:
    """The chart with its title, its legend and its colours, on white paper."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + _HEAD}" width="{WIDTH}" '
        f'height="{HEIGHT + _HEAD}"><style>{_STYLE}</style><rect class="paper" width="100%" height="100%"/>'
        f'<text class="head" x="52" y="20">{escaped(chart.title)}</text>{"".join(_legend(chart))}'
        f'<g transform="translate(0 {_HEAD})">{chart.svg}</g></svg>\n'
    )


def _legend(chart: Chart) -> Iterator[str]:
    room = (WIDTH - 52) // max(1, len(chart.legend))
    for place, (colour, name, value) in enumerate(chart.legend):
        left = 52 + room * place
        yield f'<rect class="key s{colour}" x="{left}" y="32" width="14" height="4" rx="2"/>'
        yield f'<text x="{left + 20}" y="38">{escaped(name)}: {escaped(value)}</text>'
