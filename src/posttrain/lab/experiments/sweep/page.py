"""Writes `report.html` of a sweep: one page from the data of `results.json`, which needs no network."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.files import write_atomically
from posttrain.lab.experiments.sweep.knobs import Knob, knob_of
from posttrain.report.document import Section, document, heading, table
from posttrain.report.scatter import Across, Mark, Shape, scatter_chart
from posttrain.report.svg import Series, compact, line_chart
from posttrain.report.text import escaped


def write_page(found: Found, folder: Path) -> Path:
    """Write the page into the folder of the sweep."""
    path, best = folder / "report.html", folder / "best.yaml"
    write_atomically(path, render(found, best.read_text(encoding="utf-8") if best.exists() else ""))
    return path


def render(found: Found, best_config: str = "") -> str:
    """Return the page as HTML."""
    name = Path(found["folder"]).name
    sections: list[Section] = [
        ("result", "Result", _result(found)),
        ("knobs", "Settings", _knobs(found)),
        ("collapse", "Collapse", _collapse(found)),
        ("fresh", "Fresh seeds", _fresh(found)),
        ("course", "Steps", _course(found)),
        ("trials", "Trials", _trials(found)),
        ("best", "Best", f"<h2>The best configuration</h2><pre>{escaped(best_config)}</pre>" if best_config else ""),
    ]
    facts = f"{len(found['trials'])} trials of {', '.join(found['settings']['knobs'])}"
    title = heading(name, facts, status="finished", words="sweep")
    footer = "Written by posttrain from the files of this folder. Each trial has its own report below trials/."
    return document(name, title, sections, [], footer=footer)


def _result(found: Found) -> str:
    confirmation = found["confirmation"] or {}
    tone = {1: "good", -1: "bad"}.get(confirmation.get("verdict", 0), "plain")
    first, *rest = [*found["sentences"], *found["notes"]]
    says = "".join(f"<p>{escaped(sentence)}</p>" for sentence in [first, *rest])
    headline = _headline(found)
    tiles = [(word, str(count)) for word, count in found["counts"].items()]
    tiles.append(("tokens of all trials", compact(sum(trial["tokens"] for trial in found["trials"]))))
    cells = "".join(f"<div><dt>{escaped(word)}</dt><dd>{escaped(value)}</dd></div>" for word, value in tiles)
    return (
        f'<div class="verdict {tone} alone"><div><h2>{escaped(headline)}</h2><div class="says">{says}</div></div></div>'
        f'<dl class="tiles">{cells}</dl>'
    )


def _headline(found: Found) -> str:
    if not found["comparable"]:
        return "The trials are not comparable"
    if found["best"] is None:
        return "No trial finished"
    if found["best"]["is_default"]:
        return "No tried configuration beats the default"
    if found["confirmation"] is None:
        return "The best configuration, not yet tested on fresh seeds"
    return {
        1: "The best configuration beats the default on fresh seeds",
        0: "The best configuration is not shown to beat the default",
        -1: "The best configuration is worse than the default on fresh seeds",
    }[found["confirmation"]["verdict"]]


def _knobs(found: Found) -> str:
    cards = []
    for knob in knobs_of(found):
        share = found["importance"].get(knob.key)
        weight = "" if share is None else f" Importance {share:.0%}."
        chart = knob_chart(found, knob)
        hint = f"{escaped(knob.text)}.{weight}"
        cards.append(f'<figure class="card"><h3>{escaped(knob.key)}</h3><p class="hint">{hint}</p>{chart}</figure>')
    lead = (
        f"Held-out {escaped(found['measure'])} at the end of each trial. Dots: finished. Pale dots: pruned. Crosses: "
        "collapsed. Ring: the best. Shaded: the values where trials collapse, if that is more than chance. Importance "
        "is how much a setting separates the best quarter of the trials from all of them, as a share (PED-ANOVA)."
    )
    return f'<h2>What each setting does</h2><p class="lead">{lead}</p><div class="charts">{"".join(cards)}</div>'


def _collapse(found: Found) -> str:
    if not found["counts"].get("collapsed"):
        return ""
    items = "".join(f"<li><p>{escaped(boundary['sentence'])}</p></li>" for boundary in found["boundaries"])
    reasons = "".join(
        f"<li><p>trial {trial['number']}: {escaped(trial['reason'])}</p></li>"
        for trial in found["trials"]
        if trial["outcome"] == "collapsed"
    )
    lead = (
        "A trial collapsed if a guard stopped it, or if it ended worse than it began. For each setting, the list shows "
        "the split that best separates collapsed trials from the others. The chance of as clear a split is estimated "
        "by assigning the collapses at random, over all settings and splits."
    )
    return f'<h2>From success to collapse</h2><p class="lead">{lead}</p><ul class="notes">{items}{reasons}</ul>'


def _fresh(found: Found) -> str:
    confirmation = found["confirmation"]
    if confirmation is None:
        return ""
    by_seed: dict[int, dict[str, Mapping[str, Any]]] = {}
    for score in confirmation["scores"]:
        by_seed.setdefault(score["seed"], {})[score["side"]] = score
    rows = [
        (str(seed), _score(sides["default"]), _score(sides["best"]), _difference(sides))
        for seed, sides in by_seed.items()
    ]
    shown = table(("seed", "default", "best", "difference"), rows)
    lead = "Both configurations on seeds that played no part in the selection."
    return f'<h2>On fresh seeds</h2><p class="lead">{lead}</p>{shown}'


def _score(score: Mapping[str, Any]) -> str:
    return f"{score['score']:.4g}" if score["score"] is not None else f"none: {score['reason']}"


def _difference(sides: Mapping[str, Mapping[str, Any]]) -> str:
    before, after = sides["default"]["score"], sides["best"]["score"]
    return "" if before is None or after is None else f"{after - before:+.4g}"


def _course(found: Found) -> str:
    chart = course_chart(found)
    if not chart:
        return ""
    lead = (
        "The score of every trial over its steps. Blue: the best. Orange: collapsed. Lines that end early "
        "were pruned or collapsed."
    )
    card = f'<div class="charts"><figure class="card">{chart}</figure></div>'
    return f'<h2>Over the steps</h2><p class="lead">{lead}</p>{card}'


def _trials(found: Found) -> str:
    keys = list(found["settings"]["knobs"])
    rows = [
        (
            f"{trial['number']}{' (default)' if trial['is_default'] else ''}",
            trial["outcome"],
            _span(trial),
            *(compact_value(trial["values"].get(key, "")) for key in keys),
            compact(trial["tokens"]),
            trial["reason"],
        )
        for trial in found["trials"]
    ]
    ended = [trial["tokens"] for trial in found["trials"] if trial["outcome"] == "finished"]
    uneven = ended and max(ended) > 1.2 * statistics.median(ended)
    note = '<p class="hint">Trials differ in cost: see the tokens.</p>' if uneven else ""
    shown = table(("trial", "outcome", found["measure"], *keys, "tokens", "reason"), rows)
    return f"<h2>All trials</h2>{note}{shown}"


def _span(trial: Mapping[str, Any]) -> str:
    if trial["score"] is None:
        return ""
    interval = "" if trial["low"] is None else f" ({trial['low']:.3g} to {trial['high']:.3g})"
    return f"{trial['score']:.4g}{interval}"


# --- plots -----------------------------------------------------------------------------------------------------------


Found = Mapping[str, Any]
_SHAPES: Mapping[str, Shape] = {"finished": "dot", "pruned": "faint", "collapsed": "cross"}


def knobs_of(found: Found) -> list[Knob]:
    return [knob_of(key, text) for key, text in found["settings"]["knobs"].items()]


def knob_chart(found: Found, knob: Knob) -> str:
    """Plot the held-out score against one knob. Empty if nothing was measured."""
    trials = [trial for trial in found["trials"] if trial["outcome"] in _SHAPES and knob.key in trial["values"]]
    marks = [_mark(found, knob, trial) for trial in trials]
    default = found["default"].get(knob.key)
    label = f"{found['measure']} against {knob.key}: " + "; ".join(mark.title for mark in marks)
    at_default = (_place(knob, default), "default") if knob.holds(default) else None
    return scatter_chart(marks, _across(knob), label=label, region=_region(found, knob), line=at_default)


def _mark(found: Found, knob: Knob, trial: Found) -> Mark:
    is_best = found["best"] is not None and trial["number"] == found["best"]["number"]
    score = "nothing measured" if trial["score"] is None else f"{found['measure']} {trial['score']:.4g}"
    value = compact_value(trial["values"][knob.key])
    return Mark(
        x=_place(knob, trial["values"][knob.key]),
        y=trial["score"],
        shape="best" if is_best else _SHAPES[trial["outcome"]],
        title=f"trial {trial['number']}, {trial['outcome']}, {knob.key} = {value}, {score}",
    )


def compact_value(value: Any) -> str:
    return compact(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def _place(knob: Knob, value: Any) -> float:
    return float(knob.choices.index(value) if knob.kind == "choice" else value)


def _across(knob: Knob) -> Across:
    if knob.kind == "choice":
        return Across(low=0, high=1, names=[compact_value(choice) for choice in knob.choices])
    return Across(low=knob.low, high=knob.high, log=knob.kind == "log", whole=knob.whole)


def _region(found: Found, knob: Knob) -> tuple[float, float] | None:
    """Return the range in which trials collapse, if that is more than chance."""
    boundary = next((b for b in found["boundaries"] if b["key"] == knob.key and b["chance"] < 0.05), None)
    if boundary is None:
        return None
    if boundary["inside"] is None:
        place = next(n for n, choice in enumerate(knob.choices) if boundary["beyond"] == f"= {choice}")
        return place - 0.45, place + 0.45
    edge = boundary["at"]
    return (edge, knob.high) if boundary["beyond"].startswith("above") else (knob.low, edge)


def course_chart(found: Found) -> str:
    """Plot the held-out score of every trial over its steps, with the best one in colour."""
    best = found["best"]["number"] if found["best"] else None
    lines = [
        Series(name=f"trial {trial['number']}", points=trial["course"], colour=_colour(trial, best))
        for trial in sorted(found["trials"], key=lambda trial: trial["number"] == best)
        if len(trial["course"]) > 1
    ]
    text = f"held-out {found['measure']} of {len(lines)} trials over their steps"
    return line_chart(lines, label=text, y_range=(0.0, None))


def _colour(trial: Found, best: int | None) -> int:
    if trial["number"] == best:
        return 1
    return 2 if trial["outcome"] == "collapsed" else 6
