"""`posttrain demo`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from posttrain.cli.output import AsJson, Quiet, finish, view_for
from posttrain.importing import uncollected


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    seed: Annotated[int, typer.Option(help="Seed of data, model and sampling.")] = 0,
    output: Annotated[Path | None, typer.Option(help="Run folder.", show_default="the next free runs/...")] = None,
    quiet: Quiet = False,
    json: AsJson = False,
) -> int:
    """The whole story on a CPU, in about two minutes: a weak model, a verifiable reward, GRPO, and the proof.

    \b
    Examples:
      posttrain demo
      posttrain demo --seed 1 --output runs/second
    """
    from posttrain.tasks.demo import demo_config, require_improvement, verdict

    with uncollected():
        from posttrain.train.api import train

    run = train(demo_config(seed=seed, output=output), view=view_for(quiet=quiet, as_json=json))
    typer.echo(verdict(run.evaluation), err=json)
    require_improvement(run.evaluation)
    return finish(run, as_json=json)
