"""`posttrain resume RUN`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from posttrain.cli.output import finish


def register(app: typer.Typer) -> None:
    app.command("resume")(resume)


def resume(
    run: Annotated[Path, typer.Argument(help="Run folder, for example runs/demo.")],
    steps: Annotated[int | None, typer.Option(help="Train up to this step instead of the configured one.")] = None,
    show_samples: Annotated[bool, typer.Option(help="Print a table of sample completions at each evaluation.")] = False,
    quiet: Annotated[bool, typer.Option(help="Print nothing but errors and the last line.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> int:
    """Continue a run that was stopped or killed, from its newest checkpoint that verifies.

    \b
    posttrain resume runs/demo
    posttrain resume runs/demo --steps 400
    """
    from posttrain.cli.output import view_for
    from posttrain.train.api import resume as resume_run

    result = resume_run(run, steps=steps, view=view_for(quiet=quiet, as_json=json, show_samples=show_samples))
    return finish(result, as_json=json)
