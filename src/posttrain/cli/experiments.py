"""`posttrain compare` and `sweep`: several runs that answer one question."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from posttrain.cli.output import AsJson, Quiet, answer, lines_for


def compare(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="A config, a file with arms, or a comparison's folder to continue.")
    ],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="SECTION.KEY=VALUE", help="Settings for all arms.")
    ] = None,
    algorithms: Annotated[str | None, typer.Option(help="The arms: algorithms, separated by commas.")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds, counted from 0. Default: the file's value, else 3.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="UNIT=N", help="Budget of each run: tokens=2e6, steps=200 or seconds=600.")
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="Held-out score; the result shows the tokens and seconds to reach it.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; default: comparisons/NAME.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Number of runs at the same time.")] = 1,
    quiet: Quiet = False,
    json: AsJson = False,
) -> int:
    """Compare algorithms or configs on one task with equal seeds and budget: intervals, curves and a verdict.

    Each run is its own process. A run that fails is counted and does not affect the others, but the exit code is 1. To
    continue, run the same command again.

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


# --- sweep -----------------------------------------------------------------------------------------------------------


def sweep(
    source: Annotated[
        Path,
        typer.Argument(metavar="SOURCE", help="A config, a file with base and knobs, or a sweep's folder to continue."),
    ],
    knobs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SETTING=RANGE", help="log(a,b), float(a,b), int(a,b) or choice(a,b,...); SETTING=VALUE fixes one."
        ),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Total number of trials. Default: the file's value, else 20.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Number of runs at the same time.")] = 1,
    pruner: Annotated[
        str | None, typer.Option(help="How to stop poor trials: median, hyperband or none.", show_default="median")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=0, help="Number of fresh seeds for the best configuration and the default.", show_default="5"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; default: sweeps/NAME.")] = None,
    quiet: Quiet = False,
    json: AsJson = False,
) -> int:
    """Search for the settings with the best held-out score. Shows which settings matter and which lead to collapse.

    Each trial is a run in its own process and is pruned if others do better. The best configuration and the default run
    again on fresh seeds. If the sweep is killed, run the same command again: no trial is lost.

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
