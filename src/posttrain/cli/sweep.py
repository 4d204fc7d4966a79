"""`posttrain sweep SOURCE [SETTING=RANGE ...]`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from posttrain.cli.output import AsJson, Quiet, answer, lines_for


def register(app: typer.Typer) -> None:
    app.command("sweep", no_args_is_help=True)(sweep)


def sweep(
    source: Annotated[
        Path,
        typer.Argument(metavar="SOURCE", help="A config; a file with base and knobs; or a sweep's folder, to go on."),
    ],
    knobs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SETTING=RANGE", help="log(a,b), float(a,b), int(a,b) or choice(a,b,...); SETTING=VALUE fixes one."
        ),
    ] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Trials in all; 20 unless the file says so.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 1,
    pruner: Annotated[str | None, typer.Option(help="median, hyperband or none.", show_default="median")] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=0, help="Fresh seeds for the best configuration and the default.", show_default="5"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; sweeps/NAME unless given.")] = None,
    quiet: Quiet = False,
    json: AsJson = False,
) -> int:
    """Search settings for the best held-out score; say which of them matter, and which turn success into collapse.

    Each trial is a run in a process of its own, pruned where others do better. The best configuration is run again on
    fresh seeds, beside the default. Killed at any moment, the same command goes on; no trial is lost.

    \b
    Examples:
      posttrain sweep base.yaml 'train.learning_rate=log(1e-5,1e-2)' --trials 20 --workers 2
      posttrain sweep base.yaml 'algorithm.kl_coef=choice(0,0.01,0.1)' 'sampling.group_size=int(2,16)' train.steps=60
      posttrain sweep knobs.yaml --out sweeps/second
      posttrain sweep sweeps/second --trials 40
    """
    from posttrain.lab.experiments.sweep.api import sweep as search
    from posttrain.lab.experiments.sweep.knobs import is_knob

    turned, fixed = [text for text in knobs or [] if is_knob(text)], [text for text in knobs or [] if not is_knob(text)]
    found = search(
        source,
        turned,
        overrides=fixed,
        trials=trials,
        workers=workers,
        pruner=pruner,  # pyright: ignore[reportArgumentType]  # checked with the other settings
        seeds=seeds,
        folder=out,
        tell=lines_for(quiet=quiet, as_json=json),
    )
    answer(found.to_json(), f"\n{found.render()}", as_json=json)
    return 0 if found.best is not None else 1
