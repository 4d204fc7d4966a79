"""`posttrain resume RUN`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from posttrain.cli.output import AsJson, Quiet, ShowSamples, finish, view_for
from posttrain.importing import uncollected


def register(app: typer.Typer) -> None:
    app.command("resume", no_args_is_help=True)(resume)


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, for example runs/tiny-sort-grpo-1.")],
    steps: Annotated[
        int | None, typer.Option(min=1, help="Train up to this step instead of the configured one.")
    ] = None,
    show_samples: ShowSamples = False,
    quiet: Quiet = False,
    json: AsJson = False,
) -> int:
    """Continue a run that was stopped or killed, from its newest checkpoint that verifies; or a pipeline.

    \b
    Examples:
      posttrain resume runs/tiny-sort-grpo-1
      posttrain resume runs/tiny-sort-grpo-1 --steps 400
    """
    with uncollected():
        from posttrain.pipeline.run import go_on

    result = go_on(run, steps=steps, view=view_for(quiet=quiet, as_json=json, show_samples=show_samples))
    return finish(result, as_json=json)
