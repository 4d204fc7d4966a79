"""`posttrain compare CONFIG|COMPARISON|FOLDER [SECTION.KEY=VALUE ...]`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from posttrain.cli.output import AsJson, Quiet, answer, lines_for


def register(app: typer.Typer) -> None:
    app.command("compare", no_args_is_help=True)(compare)


def compare(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="A config; a file with arms; or a comparison's folder, to go on.")
    ],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="SECTION.KEY=VALUE", help="Settings of all arms.")
    ] = None,
    algorithms: Annotated[str | None, typer.Option(help="The arms: algorithms, with commas.")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many seeds, from 0 on; 3 unless the file says so.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="UNIT=N", help="Of each run: tokens=2e6, steps=200 or seconds=600.")
    ] = None,
    target: Annotated[float | None, typer.Option(help="Held-out score; tells the tokens and seconds to it.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; comparisons/NAME unless given.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 1,
    quiet: Quiet = False,
    json: AsJson = False,
) -> int:
    """Compare algorithms, or configs, on one task with equal seeds and budget: intervals, curves, and a verdict.

    Each run is a process of its own; one that fails is counted and loses no other, and the exit code is 1. The same
    command again goes on.

    \b
    Examples:
      posttrain compare base.yaml --algorithms grpo,dr_grpo,rloo --seeds 3 --budget tokens=2e6
      posttrain compare arms.yaml --seeds 5 --workers 2 --out comparisons/learning-rates
      posttrain compare comparisons/learning-rates --seeds 10
      posttrain compare base.yaml train.learning_rate=1e-5 --algorithms ppo,grpo --target 0.8
    """
    from posttrain.lab.experiments.compare.api import compare as compare_arms

    found = compare_arms(
        source,
        algorithms=[name.strip() for name in (algorithms or "").split(",") if name.strip()],
        seeds=seeds,
        budget=budget,
        target=target,
        out=out,
        workers=workers,
        overrides=settings or [],
        tell=lines_for(quiet=quiet, as_json=json),
    )
    content = found.to_json()
    answer(content, f"\n{found.render()}\n\ncomparison {found.folder}\nreport     {content['report']}", as_json=json)
    return 0 if found.comparable and found.complete else 1
