"""The stages of a pipeline side by side: a table for the terminal, and `report.html` of the pipeline's folder.

It reads only files: pipeline.json, and the run folder of each stage.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.files import read_inside, write_atomically
from posttrain.report.document import cell, document, heading, table_of
from posttrain.report.others import forgot
from posttrain.report.spans import show_span
from posttrain.report.store import mapping, read_run
from posttrain.report.text import aligned, escaped
from posttrain.report.verdict import Verdict, held_out_verdict
from posttrain.report.writing import writes_worse

_HEAD = ("stage", "algorithm", "held-out", "baseline", "trained", "", "model")
MOST_PROGRESS = 10_000_000
_TONES = {1: "better", 0: "no change is shown", -1: "worse"}


@dataclass(frozen=True, kw_only=True)
class StageRow:
    """The row of one stage in the table."""

    name: str
    algorithm: str
    folder: str
    status: str
    measure: str
    """Name of the measure on held-out data; empty if nothing was measured."""
    baseline: str
    """Value before training with its interval; `trained` is the value after it."""
    trained: str
    change: str
    model: str
    """Folder of the model, relative to the pipeline's folder."""
    received: str
    """Proofs that the stage received the right models."""
    warnings: tuple[str, ...] = ()


def stage_rows(folder: Path | str) -> list[StageRow]:
    """Return the rows from pipeline.json and the runs; empty if there is no pipeline.json."""
    folder = Path(folder)
    stages = _progress(folder).get("stages")
    return [_row(folder, mapping(entry)) for entry in (stages if isinstance(stages, list) else [])]


def table_text(rows: Sequence[StageRow]) -> str:
    """Return the stages as a plain-text table: held-out values before and after, and the folder of the model."""
    cells = [
        (row.name, row.algorithm, row.measure or "-", row.baseline or "-", row.trained or "-", row.change, row.model)
        for row in rows
    ]
    return aligned(_HEAD, cells)


def write_pipeline_report(folder: Path | str) -> Path:
    """Write `report.html` of a pipeline: the table, the proofs of the hand-overs, and links to the stages' reports."""
    path = Path(folder) / "report.html"
    write_atomically(path, render(path.parent))
    return path


def render(folder: Path) -> str:
    """Return the page as HTML."""
    progress, rows = _progress(folder), stage_rows(folder)
    state = str(progress.get("status", "unfinished"))
    known = state if state in ("finished", "failed") else "unfinished"
    name = folder.resolve().name
    facts = f"a pipeline of {len(rows)} stages"
    title = heading(name, facts, status=known, words=escaped(state)) + _trouble(progress)
    proofs = "".join(f"<li><b>{escaped(row.name)}</b>: {escaped(row.received)}</li>" for row in rows if row.received)
    warned = "".join(f'<li class="warn"><p>{escaped(text)}</p></li>' for row in rows for text in row.warnings)
    sections = [
        ("stages", "Stages", _stages_html(progress, rows, folder)),
        ("warnings", "Worth knowing", f'<h2>Worth knowing</h2><ul class="notes">{warned}</ul>' if warned else ""),
        ("proofs", "Hand-overs", f"<h2>Hand-overs</h2><ul>{proofs}</ul>" if proofs else ""),
    ]
    return document(name, title, sections, [], footer="Written by posttrain from the files of this folder.")


def _trouble(progress: Mapping[str, Any]) -> str:
    error = mapping(progress.get("error"))
    if not error:
        return ""
    what = "Interrupted" if error.get("type") == "KeyboardInterrupt" else str(error.get("type"))
    message = str(error.get("message") or "")
    return f'<div class="trouble"><b>{escaped(what)}</b>{f"<pre>{escaped(message)}</pre>" if message else ""}</div>'


def _stages_html(progress: Mapping[str, Any], rows: Sequence[StageRow], folder: Path) -> str:
    body = "".join(_html_row(row, folder) for row in rows)
    exported = f"<p>Exported to {escaped(progress['export'])}.</p>" if progress.get("export") else ""
    lead = (
        "The measurements of each stage on held-out data before and after it, with intervals. Each name links to "
        "the report of that run."
    )
    return f'<h2>Stages</h2><p class="lead">{lead}</p>{table_of(_HEAD, body)}{exported}'


def _html_row(row: StageRow, folder: Path) -> str:
    name = escaped(row.name)
    if (folder / row.folder / "report.html").exists():
        name = f'<a href="{html.escape(row.folder, quote=True)}/report.html">{name}</a>'
    cells = (row.algorithm, row.measure or "-", row.baseline or "-", row.trained or "-", row.change, row.model)
    named = zip(_HEAD[1:], map(escaped, cells), strict=True)
    return f"<tr>{cell(name, _HEAD[0])}{''.join(cell(html, title) for title, html in named)}</tr>"


def _row(folder: Path, entry: Any) -> StageRow:
    place = _place(entry)
    status = str(entry.get("status", "waiting"))
    begun = bool(place) and (folder / place).is_dir() and not (folder / place).is_symlink()
    run = read_run(folder / place) if begun else None
    found = held_out_verdict(run) if run else None
    before, after = (found.baseline, found.trained) if found else (None, None)
    measured = found is not None and before is not None and after is not None
    received = mapping(entry.get("received")).items()
    return StageRow(
        name=str(entry.get("name", "")),
        algorithm=str(entry.get("algorithm", "")),
        folder=place,
        status=status,
        measure=found.measure if found and (before or after) else "",
        baseline=show_span(found.measure, before) if found and before else "",
        trained=show_span(found.measure, after) if found and after else "",
        change=_change(found, run.evaluation)
        if run and found and measured
        else ("" if status == "finished" else status),
        model=str(entry.get("model", "")),
        received="; ".join(_proof(setting, mapping(proof)) for setting, proof in received),
        warnings=tuple(map(str, entry.get("warnings", ()))),
    )


def _change(found: Verdict, evaluation: Mapping[str, Any]) -> str:
    """Return the change of the measure in words, and what else the verdict of the stage complains about."""
    found_worse = {"writes worse": writes_worse(evaluation), "has forgotten": forgot(evaluation)}
    also = [words for words, how in found_worse.items() if how and found.change >= 0]
    return ", ".join([_TONES[found.change], *also])


def _proof(setting: str, proof: Any) -> str:
    text = (
        f"{setting} is the model of stage {proof.get('stage')}: {proof.get('weights_compared')} weights equal, "
        f"largest difference of the probe {proof.get('largest_difference')}"
    )
    same = proof.get("same_greedy_answers")
    return f"{text}, {same} greedy answers the same" if same else text


def _progress(folder: Path) -> Any:
    try:
        return mapping(json.loads(read_inside(folder, "pipeline.json", most=MOST_PROGRESS)))
    except (OSError, ValueError, RecursionError):
        return {}


def _place(entry: Mapping[str, Any]) -> str:
    """Return the name of a stage's folder in the pipeline's folder; "" if the entry names any other path."""
    name = str(entry.get("folder", ""))
    return name if re.fullmatch(r"\d+-[^/\x00]+", name) else ""
