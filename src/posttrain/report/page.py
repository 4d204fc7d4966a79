"""`report.html`: the whole run on one page that is readable without network, server or scripts.

All text from a model, a dataset or an error passes through `escaped`. In addition, the page's content security policy
allows only its own style and script, by their hashes, so text that is not escaped by mistake still cannot act.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from posttrain.files import write_atomically
from posttrain.report.alarms import alarms_html, watch_charts
from posttrain.report.calibration import calibration_section
from posttrain.report.chart import Chart
from posttrain.report.charts import check_bars, heldout_bars, learning_charts, other_charts
from posttrain.report.clock import clock_of
from posttrain.report.document import Live, cards, cell, document, heading, table_of
from posttrain.report.heldout import headline_span, measure_of
from posttrain.report.note import fifths
from posttrain.report.notes import observations
from posttrain.report.proofs import proofs
from posttrain.report.samples import samples_html
from posttrain.report.side_by_side import side_by_side_charts
from posttrain.report.spans import show_span, show_value
from posttrain.report.store import RunRecord, config_lines, mapping, number, read_run
from posttrain.report.svg import compact, percent, seconds
from posttrain.report.text import cut, escaped
from posttrain.report.verdict import Verdict, verdict
from posttrain.report.writing import before_and_after_html, writing_samples_html

_EVENT_KINDS = ("warning", "guard", "alarm", "error", "resume", "start", "end", "evaluation", "compute", "data")
"""Kinds of events that are shown in full. The others, publishes and checkpoints, are only counted."""
_MAX_EVENTS = 200


def write_report(folder: str | PathLike[str]) -> Path:
    """Read the run in `folder` and write its `report.html`. Missing parts are left out, and the page names them.

    Raises `DoesNotFit` or OSError if the page cannot be written, and nothing else.
    """
    folder = Path(folder)
    path = folder / "report.html"
    write_atomically(path, render(read_run(folder)))
    return path


def render(run: RunRecord, above: str = "", live: Live | None = None) -> str:
    """Return the page as HTML. `above` is HTML to put above its title. The learning comes before the alarms."""
    charts = learning_charts(run)
    watched = watch_charts(run)
    beside = side_by_side_charts(run)
    others = other_charts(run, [*charts, *watched, *beside])
    sections = [
        ("result", "Result", _result(run)),
        ("learning", "Learning", _learning(charts, others)),
        ("calibration", "Calibration", calibration_section(run)),
        ("alarms", "Alarms", _alarms(run, watched)),
        ("noticed", "Worth knowing", _noticed(run)),
        ("side-by-side", "Side by side", _side_by_side(beside)),
        ("samples", "Samples", _samples(run)),
        ("proofs", "Proofs", _proofs(run)),
        ("events", "Events", _events(run)),
        ("config", "Settings", _config(run)),
    ]
    footer = f"Written by posttrain from the files of this run folder. {_unread(run)}"
    drawn, clocks = charts + watched + beside + others, [clock_of(run)]
    return document(run.name, above + _title(run), sections, drawn, footer=footer, clocks=clocks, live=live)


def _title(run: RunRecord) -> str:
    facts = [
        str(run.setting("model.path") or ""),
        str(run.setting("algorithm.name") or ""),
        f"seed {run.setting('seed')}" if run.setting("seed") is not None else "",
        str((run.events[0].get("time") if run.events else "") or "")[:16].replace("T", " "),
    ]
    words = {"finished": "finished", "failed": "stopped with an error", "unfinished": "not finished"}
    return heading(run.name, " · ".join(filter(None, facts)), status=run.status, words=words[run.status])


def _result(run: RunRecord) -> str:
    found = verdict(run)
    bars, checks = heldout_bars(run), check_bars(run)
    figures = ""
    if bars:
        caption = (
            '<span><i class="key baseline"></i>before training</span><span><i class="key trained"></i>after</span>'
        )
        measure = escaped(f"held-out {found.measure}")
        figures += f"<figure><figcaption><b>{measure}</b>{caption}</figcaption>{bars}</figure>"
    if checks:
        figures += f"<figure><figcaption><b>independent check</b></figcaption>{checks}</figure>"
    sentences = "".join(f"<p>{escaped(sentence)}</p>" for sentence in found.sentences)
    says = f'<div><h2>{escaped(found.headline)}</h2>{_change(found)}<div class="says">{sentences}</div></div>'
    figures = f"<div>{figures}</div>" if figures else ""
    kind = f"verdict {found.tone}" if figures else f"verdict {found.tone} alone"
    return f'{_trouble(run)}<div class="{kind}">{says}{figures}</div>{_tiles(run)}'


def _change(found: Verdict) -> str:
    if found.baseline is None or found.trained is None:
        return ""
    before, after = (show_value(found.measure, side.mean) for side in (found.baseline, found.trained))
    ranges = [
        f"{show_value(found.measure, side.low)} to {show_value(found.measure, side.high)}"
        if math.isfinite(side.low) and math.isfinite(side.high)
        else "no interval"
        for side in (found.baseline, found.trained)
    ]
    return (
        f'<div class="change"><span>{before}<small>{ranges[0]}</small></span><i aria-label="to">→</i>'
        f"<b>{after}<small>{ranges[1]}</small></b></div>"
    )


def _trouble(run: RunRecord) -> str:
    if run.status != "failed" or run.error is None:
        return ""
    step = number(run.error.get("step"))
    where = f" after step {step:.0f}" if step is not None else ""
    message, note = cut(str(run.error.get("message", "")), 4000)
    return (
        f'<div class="trouble"><b>{escaped(run.error.get("type", "Error"))}{where}</b>'
        f"<pre>{escaped(message)}{escaped(note)}</pre></div>"
    )


def _tiles(run: RunRecord) -> str:
    tiles: list[tuple[str, str]] = []
    if run.metrics:
        planned = number(run.setting("train.steps"))
        done = run.metrics[-1]["step"]
        tiles.append(("steps", f"{done} of {planned:.0f}" if planned and planned != done else str(done)))
    if tokens := run.series("num_tokens"):
        tiles.append(("tokens", compact(tokens[-1][1])))
    if times := run.series("time/step"):
        tiles.append(("time in steps", seconds(math.fsum(value for _, value in times))))
    for label, name, form in (
        ("reward at the end", "reward", compact),
        ("groups with signal", "frac_reward_zero_std", lambda dead: percent(1 - dead)),
        ("truncated answers", "completions/clipped_ratio", percent),
        ("training pairs in order", "rewards/accuracies", percent),
        ("margin at the end", "rewards/margins", compact),
        ("training perplexity", "sft/perplexity", compact),
    ):
        if (points := run.series(name)) and (name != "frac_reward_zero_std" or run.compares_groups):
            tiles.append((label, form(fifths(points)[1])))
    cells = "".join(f"<div><dt>{label}</dt><dd>{escaped(value)}</dd></div>" for label, value in tiles)
    return f'<dl class="tiles">{cells}</dl>' if cells else ""


def _noticed(run: RunRecord) -> str:
    found = observations(run)
    if not found:
        return ""
    items = "".join(
        f'<li class="{note.level}"><h3>{escaped(note.title)}</h3><p>{escaped(note.text)}</p></li>' for note in found
    )
    lead = "Read from the metrics of this run, most serious first."
    return f'<h2>Worth knowing</h2><p class="lead">{lead}</p><ul class="notes">{items}</ul>'


def _alarms(run: RunRecord, charts: Sequence[Chart]) -> str:
    told = alarms_html(run)
    return f"{told}{cards(charts)}" if told else ""


def _learning(charts: Sequence[Chart], others: Sequence[Chart]) -> str:
    if not charts and not others:
        return ""
    lead = (
        "One point per step. Move over a plot, or focus it and use the arrow keys, to read values. Drag, or press + "
        "and −, to zoom."
    )
    more = ""
    if others:
        more = f'<details class="more"><summary>{len(others)} more metrics</summary>{cards(others)}</details>'
    return f'<h2>Learning</h2><p class="lead">{lead}</p>{cards(charts)}{more}'


def _side_by_side(charts: Sequence[Chart]) -> str:
    if not charts:
        return ""
    lead = (
        "Engines sample while the model trains. This section shows how old tokens are when they are trained, and "
        "how long trainer and engines wait. For a detailed timeline, open timeline.json of the run in Perfetto or "
        "chrome://tracing."
    )
    return f'<h2>Side by side</h2><p class="lead">{lead}</p>{cards(charts)}'


def _samples(run: RunRecord) -> str:
    return _samples_of_training(run) + _other_prompts(run)


def _other_prompts(run: RunRecord) -> str:
    answers = before_and_after_html(run, "others")
    if not answers:
        return ""
    lead = "Greedy answers to prompts unrelated to the training, before and after, cut at 64 tokens."
    return f'<h2>Other prompts</h2><p class="lead">{lead}</p>{answers}'


def _samples_of_training(run: RunRecord) -> str:
    shown = samples_html(run)
    if not shown:
        answers = writing_samples_html(run)
        lead = "Greedy answers to the same prompts, before and after training, cut at 64 tokens."
        return f'<h2>Samples</h2><p class="lead">{lead}</p>{answers}' if answers else ""
    lead = "The model's samples, by prompt. Colour is the advantage of a token: this step made it more or less likely."
    return f'<h2>Samples</h2><p class="lead">{lead}</p>{shown}'


def _proofs(run: RunRecord) -> str:
    words = {"yes": "✓ held", "no": "✗ failed", "unknown": "not shown"}
    rows = "".join(
        f"<tr>{cell(escaped(proof.claim), 'claim')}{cell(words[proof.state], 'in this run', f'state {proof.state}')}"
        f"{cell(escaped(cut(proof.evidence, 600)[0]), 'evidence', 'wide')}</tr>"
        for proof in proofs(run)
    )
    lead = "The run's evidence for the promises of the library."
    shown = table_of(("claim", "in this run", "evidence"), rows)
    return f'<h2>Proofs</h2><p class="lead">{lead}</p>{shown}'


def _events(run: RunRecord) -> str:
    if not run.events:
        return ""
    shown = [event for event in run.events if event.get("kind") in _EVENT_KINDS]
    hidden = len(run.events) - len(shown)
    rows = "".join(_event_row(event) for event in shown[:_MAX_EVENTS])
    routine = f"{hidden} routine events (publishes, checkpoints) are not shown here; events.jsonl has them."
    more = f'<p class="hint">{routine}</p>' if hidden else ""
    if len(shown) > _MAX_EVENTS:
        more += f'<p class="hint">The first {_MAX_EVENTS} of {len(shown)} are shown.</p>'
    return f"<h2>Events</h2>{table_of(('time', 'step', 'kind', 'message'), rows)}{more}"


def _event_row(event: dict[str, Any]) -> str:
    step = number(event.get("step"))
    message, note = cut(str(event.get("message") or ""), 2000)
    if event.get("kind") == "evaluation":
        message += _event_score(mapping(event.get("evaluation")))
    kind, time = escaped(event.get("kind")), escaped(str(event.get("time") or "")[11:19])
    cells = [
        cell(time, "time", "kind"),
        cell("" if step is None else f"{step:.0f}", "step"),
        cell(kind, "kind", f"kind {kind}"),
        cell(f"{escaped(message)} {escaped(note)}", "message", "wide"),
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _event_score(evaluation: Mapping[str, Any]) -> str:
    measure = measure_of(evaluation)
    found = headline_span(evaluation, measure)
    return f": {measure} {show_span(measure, found)}" if found else ""


def _config(run: RunRecord) -> str:
    lines = list(config_lines(run.config_text))
    if not lines:
        return ""
    rows = "".join(
        f'<div class="{"default" if origin.startswith("default") else "set" if origin else "plain"}">'
        f"<code>{escaped(line) or ' '}</code><span>{escaped(origin)}</span></div>"
        for line, origin in lines
    )
    lead = "Resolved, with the origin of every value; the file loads again to exactly this run."
    return (
        f'<h2>Settings</h2><p class="lead">{lead}</p><input class="only" type="checkbox" id="only-set">'
        f'<label for="only-set">hide defaults</label><div class="config mono">{rows}</div>'
    )


def _unread(run: RunRecord) -> str:
    return f"Not everything could be read: {'; '.join(run.notes)}." if run.notes else ""
