"""The frame of a page and its cards with plots. The page is readable without network, server or scripts.

If scripts are allowed, uPlot (assets/uplot, MIT) replaces the pictures by plots that can be zoomed, smoothed and
saved.

All text from a model, a dataset or an error passes through `escaped`. In addition, the page's content security policy
allows only its own style and script, by their hashes, so text that is not escaped by mistake still cannot act.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
from collections.abc import Iterable, Sequence
from string import Template
from typing import NamedTuple

from posttrain.report.chart import Chart
from posttrain.report.clock import Clock
from posttrain.report.text import escaped, script_json

Section = tuple[str, str, str]
"""(id, title, HTML). A section without HTML is left out."""


def document(
    name: str,
    title: str,
    sections: Sequence[Section],
    charts: Sequence[Chart],
    *,
    footer: str,
    clocks: Sequence[Clock] = (),
    asks: bool = False,
    frames: bool = False,
    live: Live | None = None,
) -> str:
    """Return the page as HTML. `title` is HTML; `name` and `footer` are text. Lines of `charts` refer to `clocks` by
    index.

    `asks`: the page has forms that send to its own origin. `frames`: it shows another page of its origin in a frame.
    """
    present = [section for section in sections if section[2]]
    nav = "".join(f'<a href="#{key}">{heading}</a>' for key, heading, _ in present)
    body = "\n".join(f'<section id="{key}" aria-label="{head}">{content}</section>' for key, head, content in present)
    first = present[0] if present else ("top", "Top", "")
    plots = bool(charts or clocks)
    style, script = _joined(_styles(plots)), _joined(_scripts(plots, live))
    policy = (
        f"default-src 'none'; style-src '{hash_of(style)}'; script-src '{hash_of(script)}'; "
        f"base-uri 'none'; form-action '{'self' if asks else 'none'}'"
    )
    policy += ("; frame-src 'self'" if frames else "") + ("; connect-src 'self'" if live else "")
    return Template(_asset("document.html")).substitute(
        policy=policy,
        name=escaped(name),
        style=style,
        live=f' data-live="{escaped(live.address)}" data-seen="{escaped(live.seen)}"' if live else "",
        first=first[0],
        first_title=first[1].lower(),
        nav=nav,
        title=title,
        body=body,
        footer=escaped(footer),
        data=script_json({"charts": {chart.key: chart.data() for chart in charts if not chart.flat}, "clocks": clocks}),
        script=script,
    )


class Live(NamedTuple):
    """The live-update settings of a page."""

    address: str
    """Address of the server-sent events, of the same origin."""
    seen: str
    """Name of the state of the files that the page shows; events carry the names of newer states."""


def _styles(plots: bool) -> list[str]:
    return [*(["uplot/uPlot.min.css"] if plots else []), "report.css"]


def _scripts(plots: bool, live: Live | None) -> list[str]:
    drawing = ["uplot/uPlot.iife.min.js", "numbers.js", "plot_data.js", "plot.js", "plots.js"] if plots else []
    return [*drawing, "report.js", *(["table.js", "live.js"] if live else [])]


def _joined(names: Sequence[str]) -> str:
    return "\n".join(map(_asset, names))


def heading(name: str, facts: str, *, status: str, words: str) -> str:
    """Return the title of a page: the name, its status (`status` is a CSS class, `words` the text) and more facts."""
    return (
        f'<header class="title"><h1><span dir="auto">{escaped(name)}</span><span class="status {status}">{words}</span>'
        f"</h1><p>{escaped(facts)}</p></header>"
    )


def cards(charts: Sequence[Chart]) -> str:
    """Return plots side by side. A plot whose lines are all constant is given as a number instead."""
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
        f'<figure class="card" data-chart="{escaped(chart.key)}"><h3>{escaped(chart.title)}</h3>'
        f'<p class="hint">{escaped(chart.hint)}</p><ul class="legend-line">{legend}</ul><p class="readout"></p>'
        f'<div class="plot">{chart.svg}</div>'
        f'<div class="foot"><details class="values"><summary>Values</summary>{_values(chart)}</details></div></figure>'
    )


def _values(chart: Chart) -> str:
    return table(("line", "first", "last", "lowest", "highest"), chart.values())


def _asset(name: str) -> str:
    return (importlib.resources.files("posttrain.report") / "assets" / name).read_text(encoding="utf-8")


def hash_of(source: str) -> str:
    """Return the hash by which a page's policy names its own style or script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode("utf-8")).digest()).decode()


# --- tables ----------------------------------------------------------------------------------------------------------


class Link(NamedTuple):
    """A table cell with a link."""

    text: str
    target: str


def table(head: Sequence[str], rows: Iterable[Sequence[str | Link]]) -> str:
    """Return a table whose titles and cells are text, escaped here."""
    body = (
        f"<tr>{''.join(cell(_shown(value), title) for title, value in zip(head, row, strict=True))}</tr>"
        for row in rows
    )
    return table_of(head, "".join(body))


def table_of(head: Sequence[str], rows: str) -> str:
    """Return a table around rows made of `cell`. Screen readers read the column titles with the cells. On a phone, each
    row is a block, and each cell follows its title."""
    titles = "".join(f'<th scope="col">{escaped(title)}</th>' if title else "<td></td>" for title in head)
    return (
        f'<div class="scroll"><table class="stacks"><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def cell(html: str, title: str = "", kind: str = "") -> str:
    """Return a table cell from HTML, with the title of its column for the layout on a phone."""
    named = f' data-title="{escaped(title)}"' if title else ""
    styled = f' class="{kind}"' if kind else ""
    return f"<td{styled}{named}>{html}</td>"


def _shown(value: str | Link) -> str:
    return f'<a href="{escaped(value.target)}">{escaped(value.text)}</a>' if isinstance(value, Link) else escaped(value)
