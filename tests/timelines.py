"""A reader for timeline files that reads them like their viewers do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple


class Span(NamedTuple):
    track: str
    name: str
    begin: int
    end: float
    """End of the span, in microseconds, or infinity if the file ends before the span does."""
    depth: int
    args: dict[str, Any]


def events_of(path: Path) -> list[dict[str, Any]]:
    """Return the events of a file, with or without its closing bracket."""
    text = path.read_text().rstrip()
    return json.loads(text if text.endswith("]") else text + "]")


def tracks_of(events: list[dict[str, Any]]) -> dict[int, str]:
    return {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}


def spans_of(events: list[dict[str, Any]]) -> Iterator[Span]:
    """Yield all spans. An end without a beginning is an error."""
    names, open_spans = tracks_of(events), dict[int, list[dict[str, Any]]]()
    for event in events:
        spans = open_spans.setdefault(event.get("tid", 0), [])
        if event["ph"] == "B":
            spans.append(event)
        elif event["ph"] == "E":
            begun = spans.pop()
            yield Span(names[event["tid"]], begun["name"], begun["ts"], event["ts"], len(spans), begun["args"])
    for tid, spans in open_spans.items():
        for depth, begun in enumerate(spans):
            yield Span(names[tid], begun["name"], begun["ts"], float("inf"), depth, begun["args"])


def instants_of(events: list[dict[str, Any]]) -> list[tuple[str, str, dict[str, Any]]]:
    names = tracks_of(events)
    return [(names[event["tid"]], event["name"], event["args"]) for event in events if event["ph"] == "i"]
