"""The pages of `posttrain dash` besides the report of a run: all runs, several runs on the same plots, the samples of
a step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from posttrain.report.chart import Chart, Plot, draw, plots
from posttrain.report.charts import heldout_points
from posttrain.report.clock import clock_of
from posttrain.report.dashboard.runs import Place, Standing
from posttrain.report.dashboard.settings import differences_html
from posttrain.report.document import Live, cards, document
from posttrain.report.samples import Group, group_html, groups_of, largest_advantage, legend, token_pieces
from posttrain.report.side_by_side import samples_beside
from posttrain.report.spans import show_span, show_value
from posttrain.report.store import RunRecord, read_rollouts
from posttrain.report.svg import Series, compact, percent
from posttrain.report.text import cut, escaped
from posttrain.shown import shown

NEWS = "/news"
MOST_OVERLAID = 6
"""Maximum number of runs on the same plots: the number of colours."""
GROUPS_PER_PAGE, ROWS_PER_GROUP = 10, 64
_REWARD = Plot(title="Reward", metrics={"reward": "mean"}, hint="Mean over the answers that were trained on.", low=None)
_WORDS = {
    "running": "running",
    "finished": "finished",
    "failed": "failed",
    "stopped": "stopped",
    "silent": "not finished",
}
_SHOW = {
    "all": "all prompts",
    "signal": "prompts whose answers got different rewards",
    "cut": "prompts with an answer that was cut off",
}


def run_address(name: str) -> str:
    """Return the address of a run's report. The relative links of comparison pages lead there as they do on disk."""
    return f"/runs/{quote(name)}/report.html"


def live(runs: Sequence[str], seen: str) -> Live:
    """Return the live-update settings of a page about these runs, or about all. `seen` names the state it shows."""
    return Live(NEWS + (f"?{urlencode([('run', name) for name in runs])}" if runs else ""), seen)


def rollouts_address(name: str, **query: Any) -> str:
    return f"/runs/{quote(name)}/rollouts" + (f"?{urlencode(query)}" if query else "")


# --- all runs ---------------------------------------------------------------------------------------------------------


def overview(folder: Path, place: Place, found: Sequence[Standing], seen: str = "") -> str:
    """Return the page of all runs, the most recently changed first, with the comparison pages."""
    newest = sorted(found, key=lambda run: run.age)
    running = sum(run.state == "running" for run in found)
    facts = f"{len(found)} run{'' if len(found) == 1 else 's'}, {running} running"
    if not place.complete:
        facts += f"; more runs are not shown: open a subfolder with `posttrain dash {shown(folder / 'PART')}`"
    title = f'<header class="title"><h1 dir="auto">{escaped(folder)}</h1><p>{escaped(facts)}</p></header>'
    sections = [("runs", "Runs", _runs_html(newest)), ("pages", "Comparisons", _pages_html(place.pages))]
    footer = "Read from the files of the runs. This page writes nothing to them."
    return document("Runs", title, sections, [], footer=footer, asks=True, live=live([], seen))


def _runs_html(found: Sequence[Standing]) -> str:
    if not found:
        return '<p class="lead">No run has started below this folder. New runs appear here.</p>'
    titles = {"run": "", "held-out": "", "reward": "num", "step": "num", "state": "", "changed": "num"}
    head = "".join(f'<th scope="col" class="{kind}" data-name="{name}">{name}</th>' for name, kind in titles.items())
    rows = "".join(_run_row(run, place) for place, run in enumerate(found))
    chosen = f"Compare the chosen</button> two to {MOST_OVERLAID} of them: settings that differ, and the same plots"
    draws = f'<p><button type="submit">{chosen}</p>'
    return (
        f'{_finder(found)}<form action="/overlay" method="get"><div class="scroll">'
        '<table class="runs stacks" data-finds>'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table></div>{draws if len(found) > 1 else ''}"
        "</form>"
    )


def _finder(found: Sequence[Standing]) -> str:
    """Return the search form for the table of runs. It is hidden without scripts, because it would do nothing."""
    fields = (
        ("state", {"": "any state"} | {_WORDS[state]: _WORDS[state] for state in sorted({run.state for run in found})}),
        (
            "algorithm",
            {"": "any algorithm"} | {name: name for name in sorted({_algorithm(run) for run in found} - {""})},
        ),
    )
    choices = "".join(
        f'<label>{name} <select name="{name}">{_options(texts, "")}</select></label> ' for name, texts in fields
    )
    return (
        '<form class="asks" data-finder hidden><label>find <input type="search" name="find"></label> '
        f'{choices}<output aria-live="polite"></output></form>'
    )


def _algorithm(run: Standing) -> str:
    return cut(run.brief.algorithm, 80)[0]


def _run_row(run: Standing, place: int) -> str:
    brief, name = run.brief, escaped(run.name)
    of = f" of {brief.steps}" if brief.steps is not None and brief.steps != brief.step else ""
    model = Path(brief.model).name if Path(brief.model).is_absolute() else brief.model
    what = " · ".join(escaped(part) for part in (cut(model, 80)[0], _algorithm(run)) if part)
    alarms = f"{brief.alarms} alarm{'' if brief.alarms == 1 else 's'}" if brief.alarms else ""
    score = brief.newest or brief.baseline
    told = _hint(escaped(cut(brief.error or brief.headline, 300)[0]))
    box = f'<input type="checkbox" name="run" value="{name}" aria-label="choose {name}">'
    cells = [
        ("run", name, "", f'<div><a href="{escaped(run_address(run.name))}" dir="auto">{name}</a>{_hint(what)}</div>'),
        ("held-out", "" if score is None else str(score.mean), "wide", f"<div>{_heldout(run)}{told}</div>"),
        ("reward", "" if brief.reward is None else str(brief.reward), "num", _reward(brief.reward)),
        ("step", str(brief.step), "num", f"{brief.step}{of}"),
        ("state", _WORDS[run.state], "", f"<div>{_badge(run.state)}{_hint(alarms)}</div>"),
        ("changed", str(round(run.age)), "num", f'<span data-age="{run.age:.1f}">{escaped(ago(run.age))}</span>'),
    ]
    shown = "".join(
        f'<td class="{kind}" data-title="{title}" data-sort="{sort}">{html}</td>' for title, sort, kind, html in cells
    )
    found = f'data-state="{_WORDS[run.state]}" data-algorithm="{escaped(_algorithm(run))}"'
    return f'<tr data-run="{name}" data-place="{place}" {found}><td>{box}</td>{shown}</tr>'


def _reward(value: float | None) -> str:
    return "" if value is None else escaped(compact(value))


def _badge(state: str) -> str:
    return f'<span class="status {_colour(state)}">{_WORDS[state]}</span>'


def _hint(html: str) -> str:
    return f'<p class="hint" dir="auto">{html}</p>' if html else ""


def _heldout(run: Standing) -> str:
    brief = run.brief
    first = "" if brief.baseline is None else show_value(brief.measure, brief.baseline.mean)
    last = "" if brief.newest is None else show_span(brief.measure, brief.newest)
    if not first and not last:
        return ""
    return f"{escaped(brief.measure)} {escaped(' → '.join(part for part in (first, last) if part))}"


def _colour(state: str) -> str:
    """Return the colour class of a badge: the report has three and a default."""
    return {"running": "running", "finished": "finished", "failed": "failed"}.get(state, "unfinished")


def _pages_html(pages: Mapping[str, Path]) -> str:
    if not pages:
        return ""
    items = "".join(f'<li><a href="{escaped(run_address(name))}">{escaped(name)}</a></li>' for name in pages)
    lead = "Pages of comparisons, sweeps and pipelines, in their last written state."
    return f'<h2>Comparisons</h2><p class="lead">{lead}</p><ul>{items}</ul>'


def ago(age: float) -> str:
    """Return an age in words.

    >>> [ago(seconds) for seconds in (2.0, 119.0, 7200.0, 3e5)]
    ['2 s ago', '2 min ago', '2 h ago', '3 days ago']
    """
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if age >= (2 * size if unit == "days" else size):
            return f"{round(age / size)} {unit} ago"
    return f"{round(age)} s ago"


# --- several runs -----------------------------------------------------------------------------------------------------


def overlay(runs: Mapping[str, RunRecord], seen: str = "") -> str:
    """Return the page of several runs: settings that differ, and their metrics on the same plots. A metric that only
    one run has is not drawn."""
    drawn = [
        _heldout_chart(runs),
        *(_metric_chart(runs, plot, name) for plot in (_REWARD, *plots()) for name in plot.metrics),
    ]
    charts = [chart for chart in drawn if chart is not None]
    links = "".join(
        f'<li><i class="key s{colour}"></i><a href="{escaped(run_address(name))}" dir="auto">{escaped(name)}</a></li>'
        for colour, name in enumerate(runs, start=1)
    )
    title = (
        f'{up()}<header class="title"><h1>{len(runs)} runs on the same plots</h1>'
        f'<ul class="legend-line">{links}</ul></header>'
    )
    body = cards(charts) if charts else '<p class="lead">They have no metric in common.</p>'
    sections = [
        ("plots", "Plots", body),
        ("settings", "Settings", differences_html({name: run.config for name, run in runs.items()})),
    ]
    unread = "; ".join(f"{name}: {note}" for name, run in runs.items() for note in run.notes)
    footer = f"Read from the files of the runs. {f'Not everything could be read: {unread}.' if unread else ''}"
    return document(
        "Several runs",
        title,
        sections,
        charts,
        footer=footer,
        clocks=[clock_of(run) for run in runs.values()],
        live=live(list(runs), seen),
    )


def _heldout_chart(runs: Mapping[str, RunRecord]) -> Chart | None:
    """Draw the held-out scores of the runs, for the measure that most of them have."""
    found = {name: heldout_points(run) for name, run in runs.items()}
    measures = [measure for measure, points in found.values() if points]
    if not measures:
        return None
    measure = max(measures, key=measures.count)
    lines = [
        Series(
            name=name,
            points=[(x, span.mean) for x, span in points],
            band=[(x, span.low, span.high) for x, span in points if span.finite],
            colour=colour,
            dots=True,
            clock=colour - 1,
        )
        for colour, (name, (own, points)) in enumerate(found.items(), start=1)
        if own == measure and points
    ]
    if len(lines) < 2:
        return None
    form, hint = (percent, compact)[measure != "accuracy"], f"{measure.capitalize()}, with intervals."
    return draw("Held-out score", lines, form, hint, y_range=(0.0, 1.0 if measure in ("accuracy", "auc") else None))


def _metric_chart(runs: Mapping[str, RunRecord], plot: Plot, metric: str) -> Chart | None:
    lines = []
    for colour, (name, run) in enumerate(runs.items(), start=1):
        if plot.side_by_side and not samples_beside(run):
            continue
        if points := run.series(metric):
            points = [(x, 1 - y) for x, y in points] if plot.invert else points
            lines.append(Series(name=name, points=points, colour=colour, clock=colour - 1))
    if len(lines) < 2:
        return None
    title = plot.title if len(plot.metrics) == 1 else f"{plot.title}: {plot.metrics[metric]}"
    hint = plot.hint if len(plot.metrics) == 1 else ""  # with several metrics, the hint is about the combined plot
    return draw(title, lines, plot.form, hint, y_range=(plot.low, plot.high), log=plot.log, names=[metric])


# --- samples of a step ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The answers that the reader wants to see."""

    step: int
    page: int = 1
    show: str = "all"
    find: str = ""

    @staticmethod
    def of(query: Mapping[str, str], steps: Sequence[int]) -> Asked:
        """Read the view from the address. Missing or invalid parts mean the last step, its first page, all prompts."""
        step, page = _whole(query.get("step", ""), -1), _whole(query.get("page", ""), 1)
        return Asked(
            step=step if step in steps else steps[-1] if steps else 0,
            page=max(1, page),
            show=query.get("show", "all") if query.get("show") in _SHOW else "all",
            find=query.get("find", "")[:200],
        )


_FOOTER = "Read from the files of the run."


def _whole(text: str, default: int) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else default


def rollouts(name: str, run: RunRecord, asked: Asked) -> str:
    """Return one page of the prompts of a step with their answers."""
    if not run.rollout_steps:
        return _no_answers(name, run)
    notes: list[str] = []
    groups = groups_of(read_rollouts(run.folder, asked.step, notes))
    chosen = [group for group in groups if _is_asked_for(group, asked)]
    pages = max(1, math.ceil(len(chosen) / GROUPS_PER_PAGE))
    page = min(asked.page, pages)
    shown = chosen[(page - 1) * GROUPS_PER_PAGE : page * GROUPS_PER_PAGE]
    scale, decode = largest_advantage(shown), token_pieces(run)
    facts = f"{len(chosen)} of {len(groups)} prompts, page {page} of {pages}"
    hint = "" if decode else '<p class="hint">No tokenizer could be opened in the last checkpoint: tokens are ids.</p>'
    body = "".join(group_html(group, scale, decode, ROWS_PER_GROUP) for group in shown)
    links = _turn(name, asked, page, pages)
    title = (
        f'{up(name)}<header class="title"><h1><span dir="auto">{escaped(name)}</span></h1>'
        f"<p>Answers of step {asked.step}. {escaped(facts)}</p></header>"
    )
    found = f"{_form(name, run, asked)}{hint}{legend(scale) if shown else ''}{links}{body}{links}"
    footer = f"{_FOOTER} {'; '.join(notes)}"
    return document(name, title, [("samples", "Answers", found)], [], footer=footer, asks=True)


def _no_answers(name: str, run: RunRecord) -> str:
    """Return the page of a run without recorded answers, with the reason."""
    reason = "The run's folder holds no answers: they are kept in rollouts/."
    if run.metrics and not run.series("completions/mean_length"):
        reason = "No step has written answers: a run that learns from given answers samples none."
    elif not run.metrics:
        reason = "The run has not written a step yet." if run.status == "unfinished" else "The run wrote no step."
    title = f'{up(name)}<header class="title"><h1><span dir="auto">{escaped(name)}</span></h1><p>Answers</p></header>'
    return document(name, title, [("samples", "Answers", f'<p class="lead">{reason}</p>')], [], footer=_FOOTER)


def _is_asked_for(group: Group, asked: Asked) -> bool:
    if asked.show == "signal" and not group.has_signal:
        return False
    if asked.show == "cut" and not any(row.get("finish_reason") == "length" for row in group.rows):
        return False
    texts = (group.prompt, *(str(row.get("completion") or "") for row in group.rows))
    return not asked.find or any(asked.find in text for text in texts)


def _form(name: str, run: RunRecord, asked: Asked) -> str:
    steps = _options({str(step): str(step) for step in run.rollout_steps}, str(asked.step))
    show = _options(_SHOW, asked.show)
    return (
        f'<form class="asks" action="{escaped(rollouts_address(name))}" method="get">'
        f'<label>step <select name="step">{steps}</select></label> '
        f'<label>show <select name="show">{show}</select></label> '
        f'<label>that contain <input type="search" name="find" value="{escaped(asked.find)}"></label> '
        '<button type="submit">Show</button></form>'
    )


def _options(texts: Mapping[str, str], chosen: str) -> str:
    return "".join(
        f'<option value="{escaped(value)}"{" selected" if value == chosen else ""}>{escaped(text)}</option>'
        for value, text in texts.items()
    )


def _turn(name: str, asked: Asked, page: int, pages: int) -> str:
    """Return the links to the previous and the next page."""
    more = {"show": asked.show, "find": asked.find} if asked.show != "all" or asked.find else {}
    turns = [("previous page", page - 1), ("next page", page + 1)]
    links = [
        f'<a href="{escaped(rollouts_address(name, step=asked.step, page=to, **more))}">{words}</a>'
        for words, to in turns
        if 1 <= to <= pages
    ]
    return f"<p>{' · '.join(links)}</p>" if links else ""


# --- navigation and frames --------------------------------------------------------------------------------------------


def up(run: str = "", *more: tuple[str, str]) -> str:
    """Return the navigation links: to all runs, to the report of a run, and others as (words, address)."""
    ways = [("all runs", "/"), *([("report", run_address(run))] if run else []), *more]
    links = (f'<a href="{escaped(address)}">{words}</a>' for words, address in ways)
    return f'<p class="up">{" · ".join(links)}</p>'


def framed(name: str, inside: Sequence[str]) -> str:
    """Return a page that shows a stored page in a sandboxed frame. Its links do not work there; links to its runs are
    above the frame."""
    links = "".join(f'<li><a href="{escaped(run_address(run))}" dir="auto">{escaped(run)}</a></li>' for run in inside)
    runs = f'<details class="more"><summary>{len(inside)} runs</summary><ul>{links}</ul></details>' if inside else ""
    title = f'{up()}<header class="title"><h1 dir="auto">{escaped(name)}</h1></header>'
    source = escaped(f"/runs/{quote(name)}/as-written.html")
    frame = f'{runs}<iframe class="written" sandbox src="{source}" title="{escaped(name)}"></iframe>'
    return document(name, title, [("page", "As written", frame)], [], footer="posttrain dash", frames=True)


def failure(words: str) -> str:
    """Return a page that says what could not be found or shown."""
    title = f'{up()}<header class="title"><h1>Not here</h1><p>{escaped(words)}</p></header>'
    return document("Not here", title, [], [], footer="posttrain dash")
