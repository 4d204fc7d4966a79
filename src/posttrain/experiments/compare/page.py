"""The page of a comparison."""

from __future__ import annotations

from pathlib import Path

from posttrain.experiments.compare.analysis import Analysis
from posttrain.experiments.compare.table import render
from posttrain.files import write_atomically
from posttrain.report.text import escaped


def write_page(folder: Path, found: Analysis) -> Path:
    path = folder / "report.html"
    write_atomically(path, f"<!doctype html><pre>{escaped(render(found))}</pre>")
    return path
