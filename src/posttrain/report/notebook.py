"""A run in a notebook: its verdict, its folder and its first plots, without a script."""

from __future__ import annotations

import html
from importlib.resources import files

from posttrain.report.charts import heldout_bars, learning_charts
from posttrain.report.store import RunRecord
from posttrain.report.verdict import verdict

PLOTS = 3
"""The first of the report's that change."""


def run_html(run: RunRecord) -> str:
    """The cell that shows a run; all text is escaped."""
    found = verdict(run)
    plots = [("Held-out", heldout_bars(run))] + [
        (chart.title, chart.svg) for chart in learning_charts(run) if not chart.flat
    ]
    figures = "".join(
        f'<figure style="margin:0"><figcaption>{html.escape(title)}</figcaption>{svg}</figure>'
        for title, svg in [plot for plot in plots if plot[1]][: 1 + PLOTS]
    )
    grid = "display:grid;grid-template-columns:repeat(auto-fit,minmax(18rem,1fr));gap:1rem;max-width:60rem"
    return (
        f'<div class="posttrain-run"><style>{_style()}</style><p><b>{html.escape(found.headline)}</b></p>'
        f'<div style="{grid}">{figures}</div><p><code>{html.escape(str(run.folder))}</code></p></div>'
    )


def _style() -> str:
    """The report's style of plots and its light colours, for this cell alone. The cell has a light background of its
    own, as a notebook does not tell whether it is dark."""
    css = (files("posttrain.report") / "assets" / "report.css").read_text(encoding="utf-8")
    colours = css.partition("{")[2].partition("}")[0].replace("color-scheme: light;", "")
    charts = [
        line.replace(".chart", ".posttrain-run .chart") for line in css.splitlines() if line.startswith(".chart ")
    ]
    shown = "background: var(--paper); color: var(--ink); padding: 0.5rem"
    return "\n".join([f".posttrain-run {{{colours}; {shown}}}", *charts])
