"""Baseline against trained, for the card: every interval that evaluation.json holds, whatever kind of run wrote it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from posttrain.report.store import RunRecord, mapping
from posttrain.report.svg import compact
from posttrain.report.verdict import Span, span, verdict


def results(run: RunRecord, step: int | None) -> str:
    """The verdict in words and a table of all intervals before and after."""
    sides = [dict(_intervals(run.evaluation.get(side))) for side in ("baseline", "trained")]
    names = list(dict.fromkeys(name for side in sides for name in side))
    if not names:
        return "Nothing was held out, so there is no measurement of what training changed."
    found = verdict(run)
    rows = [
        f"| {name} | {_shown(sides[0].get(name))} | {_shown(sides[1].get(name))} | {_count(sides, name)} |"
        for name in names
    ]
    table = ["| held out | baseline | trained | n |", "|---|---|---|---|", *rows]
    last = max((row["step"] for row in run.metrics), default=step)
    about = f"\n\nMeasured after step {last}; this export is of step {step}." if sides[1] and step != last else ""
    return f"**{found.headline}** {' '.join(found.sentences)}\n\n" + "\n".join(table) + about


def _intervals(value: Any, name: str = "") -> Iterator[tuple[str, Span]]:
    """(name, interval) of everything that has a mean, in the order of the file."""
    found = span(value)
    if found is not None and "low" in mapping(value):
        yield name or "result", found
        return
    for key, inner in mapping(value).items():
        yield from _intervals(inner, f"{name} {key}".strip())


def _shown(found: Span | None) -> str:
    return "" if found is None else f"{compact(found.mean)} ({compact(found.low)} to {compact(found.high)})"


def _count(sides: Sequence[Mapping[str, Span]], name: str) -> str:
    return str(next(side[name].n for side in reversed(sides) if name in side))
