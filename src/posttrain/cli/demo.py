"""`posttrain demo`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from posttrain.cli.output import finish


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    seed: Annotated[int, typer.Option(help="Seed of data, model and sampling.")] = 0,
    output: Annotated[Path | None, typer.Option(help="Run folder.")] = None,
    quiet: Annotated[bool, typer.Option(help="Print nothing but errors and the last lines.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> int:
    """The whole story on a CPU, in about two minutes: a weak model, a verifiable reward, GRPO, and the proof.

    \b
    posttrain demo
    posttrain demo --seed 1 --output runs/second
    """
    from posttrain.cli.output import view_for
    from posttrain.tasks.demo import demo_config, verdict
    from posttrain.train.api import train

    run = train(demo_config(seed=seed, output=output), view=view_for(quiet=quiet, as_json=json))
    if not json:
        typer.echo(verdict(run.evaluation))
    return finish(run, as_json=json)
