"""What the verbs share: the live view of a run and its last words."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from posttrain.report.terminal import TerminalView
    from posttrain.train.run import Run


def view_for(*, quiet: bool, as_json: bool, show_samples: bool = False) -> TerminalView:
    """Live output on stderr where stdout carries JSON, nothing when quiet."""
    from posttrain.report.terminal import TerminalView

    return TerminalView(stream=sys.stderr if as_json else sys.stdout, quiet=quiet, show_samples=show_samples)


def finish(run: Run, *, as_json: bool) -> int:
    """Print where everything is; the run ended well, or an error would have travelled past here."""
    summary = run.summary()
    if as_json:
        typer.echo(json.dumps(summary))
        return 0
    typer.echo(f"run      {summary['folder']}")
    typer.echo(f"model    {summary['model_path']}")
    if summary.get("report"):
        typer.echo(f"report   {summary['report']}")
    return 0
