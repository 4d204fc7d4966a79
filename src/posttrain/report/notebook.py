"""The view of a run in a notebook: its verdict, its folder and its first plots, without scripts."""

from __future__ import annotations

import html
from importlib.resources import files

from posttrain.report.charts import heldout_bars, learning_charts
from posttrain.report.store import RunRecord
from posttrain.report.verdict import verdict

PLOTS = 3
"""Number of the report's plots to show: the first ones that are not constant."""


def run_html(run: RunRecord) -> str:
    """Return the HTML of the cell that shows a run. All text is escaped."""
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
    """Return the report's plot style and its light colours, limited to this cell. The cell sets a light background,
    because a notebook does not say whether its theme is dark."""
    css = (files("posttrain.report") / "assets" / "report.css").read_text(encoding="utf-8")
    colours = css.partition("{")[2].partition("}")[0].replace("color-scheme: light;", "")
    charts = [
        line.replace(".chart", ".posttrain-run .chart") for line in css.splitlines() if line.startswith(".chart ")
    ]
    shown = "background: var(--paper); color: var(--ink); padding: 0.5rem"
    return "\n".join([f".posttrain-run {{{colours}; {shown}}}", *charts])
