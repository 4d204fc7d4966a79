"""`posttrain dash [FOLDER]`"""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from posttrain.cli.output import AsJson, answer


def register(app: typer.Typer) -> None:
    app.command("dash")(dash)


def dash(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Of runs, at any depth; or one run.")] = Path("runs"),
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Where it listens; 0 is any that is free.", show_default="8765 or the next"
        ),
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    json: AsJson = False,
) -> int:
    """A dashboard over the runs folder, in the browser: all runs, their reports, plots side by side, every answer.

    It reads files and writes none; training does not notice. Only this machine can connect, and only with the address
    that is printed. From elsewhere: ssh -L 8765:127.0.0.1:8765 MACHINE. Ctrl-C ends it.

    \b
    Examples:
      posttrain dash
      posttrain dash runs/ --open
      posttrain dash sweeps/second --port 9000
    """
    from posttrain.report.dashboard.server import Dashboard

    board = Dashboard(folder, port)
    found = {"address": board.address, "port": board.port, "folder": str(folder.absolute())}
    answer(found, f"dashboard  {board.address}\n           Ctrl-C ends it", as_json=json)
    sys.stdout.flush()
    if open_it:
        webbrowser.open(board.address)
    board.serve()
    return 0
