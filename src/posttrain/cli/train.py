"""`posttrain train CONFIG [a.b=c ...]`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from posttrain.cli.output import finish


def register(app: typer.Typer) -> None:
    app.command("train", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(train)


def train(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(help="YAML or TOML file.")],
    output: Annotated[Path | None, typer.Option(help="Run folder; it must not hold a run yet.")] = None,
    dry_run: Annotated[bool, typer.Option(help="Check and print the resolved config with its origins, then stop.")] = (
        False
    ),
    show_samples: Annotated[bool, typer.Option(help="Print a table of sample completions at each evaluation.")] = False,
    quiet: Annotated[bool, typer.Option(help="Print nothing but errors and the last line.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> int:
    """Train a model as a config says; settings can be changed on the command line.

    \b
    posttrain train recipes/demo.yaml
    posttrain train my.yaml train.steps=50 algorithm.clip_high=0.28
    posttrain train my.yaml --train.steps 50 --output runs/first
    posttrain train my.yaml --dry-run
    """
    from posttrain.cli.output import view_for
    from posttrain.config import load_config, to_yaml
    from posttrain.train.api import train_resolved

    overrides = as_overrides(context.args)
    if output is not None:
        overrides.append(f"output={output}")
    resolved = load_config(config, overrides)
    if dry_run:
        typer.echo(to_yaml(resolved))
        return 0
    run = train_resolved(resolved, view=view_for(quiet=quiet, as_json=json, show_samples=show_samples))
    return finish(run, as_json=json)


def as_overrides(arguments: list[str]) -> list[str]:
    """`a.b=c`, `--a.b=c` and `--a.b c` all mean the same."""
    overrides, rest = [], list(arguments)
    while rest:
        argument = rest.pop(0)
        if "=" in argument:
            overrides.append(argument.removeprefix("--"))
        elif argument.startswith("--") and rest:
            overrides.append(f"{argument.removeprefix('--')}={rest.pop(0)}")
        else:
            raise typer.BadParameter(f"{argument!r} is not a setting; write it as section.name=value")
    return overrides
