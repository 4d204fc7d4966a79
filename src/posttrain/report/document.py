"""A page that needs no network, no server and no script to be read: its frame, and cards with plots.

Everything that a model, a dataset or an error wrote passes through `escaped`; the page's policy allows no source but
its own style and script, named by their hashes, so that even a mistake there could not act.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
from collections.abc import Iterable, Sequence
from string import Template
from typing import NamedTuple

from posttrain.report.chart import Chart
from posttrain.report.text import escaped, script_json

Section = tuple[str, str, str]
"""(id, title, HTML); one without HTML is left out."""


def document(
    name: str,
    title: str,
    sections: Sequence[Section],
    charts: Sequence[Chart],
    *,
    footer: str,
    asks: bool = False,
    frames: bool = False,
) -> str:
    """The page: `title` is HTML, `name` and `footer` are text; the values of `charts` can be read off on it.

    `asks`: it has forms, which may go to where the page came from; `frames`: it shows another page from there.
    """
    present = [section for section in sections if section[2]]
    nav = "".join(f'<a href="#{key}">{heading}</a>' for key, heading, _ in present)
    body = "\n".join(f'<section id="{key}" aria-label="{head}">{content}</section>' for key, head, content in present)
    first = present[0] if present else ("top", "Top", "")
    style, script = _asset("report.css"), _asset("report.js")
    policy = (
        f"default-src 'none'; style-src '{hash_of(style)}'; script-src '{hash_of(script)}'; "
        f"base-uri 'none'; form-action '{'self' if asks else 'none'}'" + ("; frame-src 'self'" if frames else "")
    )
    shown, data = escaped(name), {chart.key: chart.data for chart in charts if chart.data}
    return Template(_asset("document.html")).substitute(
        policy=policy,
        name=shown,
        style=style,
        first=first[0],
        first_title=first[1].lower(),
        nav=nav,
        title=title,
        body=body,
        footer=escaped(footer),
        data=script_json(data),
        script=script,
    )


def heading(name: str, facts: str, *, status: str, words: str) -> str:
    """The title of a page: whose it is, how that stands (a class of the style; words) and what else is known."""
    return (
        f'<header class="title"><h1><span dir="auto">{escaped(name)}</span><span class="status {status}">{words}</span>'
        f"</h1><p>{escaped(facts)}</p></header>"
    )


def cards(charts: Sequence[Chart]) -> str:
    """Plots side by side; one whose lines are all constant is said as a number."""
    moving = "".join(_card(chart) for chart in charts if not chart.flat)
    flat = [chart for chart in charts if chart.flat]
    values = "".join(f"<li>{escaped(chart.title)}: {_flat_values(chart)}</li>" for chart in flat)
    still = f'<p class="hint">The same at every step:</p><ul class="still">{values}</ul>' if flat else ""
    return f'<div class="charts">{moving}</div>{still}'


def _flat_values(chart: Chart) -> str:
    if len(chart.legend) == 1:
        return f"<b>{escaped(chart.legend[0][2])}</b>"
    return ", ".join(f"{escaped(name)} <b>{escaped(value)}</b>" for _, name, value in chart.legend)


def _card(chart: Chart) -> str:
    legend = "".join(
        f'<li><i class="key s{colour}"></i>{escaped(name)} <b>{escaped(value)}</b></li>'
        for colour, name, value in chart.legend
    )
    return (
        f'<figure class="card"><h3>{escaped(chart.title)}</h3><p class="hint">{escaped(chart.hint)}</p>'
        f'<ul class="legend-line">{legend}</ul><p class="readout" aria-live="polite"></p>{chart.svg}</figure>'
    )


def _asset(name: str) -> str:
    return (importlib.resources.files("posttrain.report") / "assets" / name).read_text(encoding="utf-8")


def hash_of(source: str) -> str:
    """As the policy of a page names its own style and script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode("utf-8")).digest()).decode()


# --- tables ----------------------------------------------------------------------------------------------------------


class Link(NamedTuple):
    """A cell that leads somewhere."""

    text: str
    target: str


def table(head: Sequence[str], rows: Iterable[Sequence[str | Link]]) -> str:
    """Everything in it is text; the titles are those of their columns for a screen reader, too."""
    titles = "".join(f'<th scope="col">{escaped(title)}</th>' if title else "<td></td>" for title in head)
    body = "".join(f"<tr>{''.join(f'<td>{_shown(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{titles}</tr>{body}</table></div>'


def _shown(cell: str | Link) -> str:
    return f'<a href="{escaped(cell.target)}">{escaped(cell.text)}</a>' if isinstance(cell, Link) else escaped(cell)
