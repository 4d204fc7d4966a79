"""`posttrain explore`"""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from posttrain.cli.output import AsJson, answer


def register(app: typer.Typer) -> None:
    app.command("explore")(explore)


def explore(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where to write the page.")] = Path("explore.html"),
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    json: AsJson = False,
) -> int:
    """Write the algorithm explorer: models, memory and choices of every algorithm, and the advisor, on one page.

    The page needs no network and no server, and its numbers are those of `posttrain plan`.

    \b
    Examples:
      posttrain explore
      posttrain explore --open
      posttrain explore --out algorithms.html --json
    """
    from posttrain.lab.explore import write_page

    path = write_page(out).absolute()
    if open_it:
        webbrowser.open(path.as_uri())
    answer({"page": str(path), "bytes": path.stat().st_size}, f"page       {path}", as_json=json)
    return 0
