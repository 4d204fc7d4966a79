"""`posttrain train`, `resume`, `replay` and `demo`: verbs that start a run, continue one, or train one again."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from posttrain.cli.output import AsJson, Quiet, ShowSamples, answer, finish, lines_for, setting_keys, view_for
from posttrain.errors import ConfigError
from posttrain.importing import uncollected

if TYPE_CHECKING:
    from posttrain.config import RunConfig


LOADING = "loading torch and transformers"
OPTIONS = ("--output", "--cluster", "--dry-run", "--show-samples", "--quiet", "--json", "--help")


def train(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="YAML or TOML file.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SECTION.KEY=VALUE", help="Settings that override the file.", autocompletion=setting_keys
        ),
    ] = None,
    output: Annotated[str | None, typer.Option(help="Run folder or URL; it must not hold a run yet.")] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="Ray cluster for engines, reward workers and ranks: auto, ray://HOST:10001 or local."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the settings, print all of them with their origins, and stop.")
    ] = False,
    show_samples: ShowSamples = False,
    quiet: Quiet = False,
    json: AsJson = False,
) -> int:
    """Train a model from a config; you can change every setting on the command line.

    A file with `stages` is a pipeline: it trains one stage after the other, each from the model of the previous one.

    \b
    Examples:
      posttrain train my_run.yaml
      posttrain train my_run.yaml train.steps=50 algorithm.clip_high=0.28
      posttrain train my_run.yaml --train.learning-rate 1e-6 --output runs/first
      posttrain train my_run.yaml 'rewards=[{name: math}]' --dry-run
      posttrain train my_run.yaml rollout.engines=4 --cluster ray://head:10001
      posttrain train my_run.yaml train.devices=16 --cluster auto --output /shared/runs/first
      posttrain train pipeline.yaml stages.dpo.train.steps=50 seed=1
    """
    from posttrain.config.pipeline import holds_stages
    from posttrain.config.text import write_value

    path, overrides = split_arguments([config, *(settings or [])])
    if output is not None:
        overrides.append(f"output={write_value(output)}")
    if cluster is not None:
        overrides.append(f"cluster.address={write_value(cluster)}")
    train_one = _train_pipeline if holds_stages(path) else _train_run
    return train_one(path, overrides, dry_run, quiet, json, show_samples)


def _train_run(path: str, overrides: list[str], dry_run: bool, quiet: bool, json: bool, show_samples: bool) -> int:
    from posttrain.config import check, load_config, to_yaml

    resolved = load_config(path, overrides, checks=[names_are_known])
    check(resolved, names_are_known)  # before anything heavy is imported
    if dry_run:
        everything = {"config": resolved.config.model_dump(mode="json"), "origins": dict(resolved.origins)}
        answer(everything, to_yaml(resolved).rstrip(), as_json=json)
        return 0
    view = view_for(quiet=quiet, as_json=json, show_samples=show_samples)
    view.begins(LOADING)
    with uncollected():
        from posttrain.train.api import train_resolved

    run = train_resolved(resolved, view=view)
    return finish(run, as_json=json)


def names_are_known(config: RunConfig) -> None:
    """Raise ConfigError for rewards and checks that do not exist."""
    from posttrain.rewards.making import check_names

    check_names([*config.rewards, *config.check])


def _train_pipeline(path: str, overrides: list[str], dry_run: bool, quiet: bool, json: bool, show_samples: bool) -> int:
    from posttrain.config.pipeline import read_pipeline, to_yaml

    pipeline = read_pipeline(path, overrides, checks=[names_are_known])
    if dry_run:
        stages = [{"name": stage.name, "config": stage.config.model_dump(mode="json")} for stage in pipeline.stages]
        everything = {**pipeline.settings.model_dump(mode="json"), "stages": stages}
        answer(everything, to_yaml(pipeline, pipeline.settings.output).rstrip(), as_json=json)
        return 0
    view = view_for(quiet=quiet, as_json=json, show_samples=show_samples)
    view.begins(LOADING)
    with uncollected():
        from posttrain.pipeline.run import train_pipeline

    trained = train_pipeline(pipeline, view=view)
    return finish(trained, as_json=json)


def split_arguments(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return the config file and the overrides as `a.b=c`, in any order. `--a.b=c` and `--a.b c` mean the same.

    >>> split_arguments(["my.yaml", "--train.steps", "5", "seed=1"])
    ('my.yaml', ['train.steps=5', 'seed=1'])
    """
    configs, overrides = sort_arguments(arguments)
    if len(configs) != 1:
        raise ConfigError(
            given=f"{len(configs)} configuration files: {', '.join(configs)}" if configs else "no configuration file",
            allowed="one YAML or TOML file, and settings as section.key=value",
            fix="posttrain train my_run.yaml train.steps=50",
        )
    return configs[0], overrides


def sort_arguments(
    arguments: Sequence[str], verb: str = "train", options: Sequence[str] = OPTIONS
) -> tuple[list[str], list[str]]:
    """Return (arguments that are not settings, settings as `a.b=c`)."""
    configs: list[str] = []
    overrides: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument.startswith("-") and "=" not in argument:
            overrides.append(f"{_setting(argument, verb, options)}={_value(argument, rest)}")
        elif "=" in argument and not os.path.isfile(argument):
            overrides.append(argument.removeprefix("--"))
        else:
            configs.append(argument)
    return configs, overrides


def _setting(argument: str, verb: str, options: Sequence[str]) -> str:
    """Return the key of `--key`: it has a dot or is a top-level setting. Any other key is a misspelt option."""
    from posttrain.config import RunConfig
    from posttrain.config.pipeline import PipelineSettings

    known = {*RunConfig.model_fields, *PipelineSettings.model_fields, "preset"}
    name = argument.lstrip("-")
    if argument.startswith("--") and ("." in name or name.replace("-", "_") in known):
        return name
    close = difflib.get_close_matches(argument, [*options, *(f"--{field}" for field in RunConfig.model_fields)], n=1)
    raise ConfigError(
        given=f"{argument} is neither an option nor a setting",
        allowed=f"{', '.join(options)}, and settings as --section.key VALUE",
        fix=f"Did you mean {close[0]}?" if close else f"`posttrain {verb} --help` lists all options, with examples.",
    )


def _value(argument: str, rest: list[str]) -> str:
    if not rest or rest[0].startswith("--"):
        raise ConfigError(
            given=f"{argument} has no value",
            allowed=f"{argument} VALUE or {argument.removeprefix('--')}=VALUE",
            fix=f"To switch it on, write {argument} true.",
        )
    return rest.pop(0)


# --- resume ----------------------------------------------------------------------------------------------------------


def resume(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run folder, for example runs/tiny-sort-grpo-1, or URL.")],
    steps: Annotated[
        int | None, typer.Option(min=1, help="Train up to this step instead of the configured one.")
    ] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="Continue with this many ranks instead of the configured number.")
    ] = None,
    tensor: Annotated[
        int | None, typer.Option(min=1, help="Divide matrices among this many devices instead of `train.tensor`.")
    ] = None,
    show_samples: ShowSamples = False,
    quiet: Quiet = False,
    json: AsJson = False,
) -> int:
    """Continue a stopped or killed run from its newest intact checkpoint, or a pipeline from where it stopped.

    \b
    Examples:
      posttrain resume runs/tiny-sort-grpo-1
      posttrain resume runs/tiny-sort-grpo-1 --steps 400
      posttrain resume runs/tiny-sort-grpo-1 --devices 2
    """
    with uncollected():
        from posttrain.pipeline.run import go_on

    view = view_for(quiet=quiet, as_json=json, show_samples=show_samples)
    result = go_on(run, steps=steps, devices=devices, tensor=tensor, view=view)
    return finish(result, as_json=json)


# --- replay ----------------------------------------------------------------------------------------------------------

REPLAY_OPTIONS = ("--from", "--to", "--output", "--quiet", "--json", "--help")


def replay(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run folder, for example runs/tiny-sort-grpo-1.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SECTION.KEY=VALUE",
            help="Settings that differ from the run's: a what-if on the same data.",
            autocompletion=setting_keys,
        ),
    ] = None,
    first: Annotated[
        int | None, typer.Option("--from", min=1, help="First step; default: after the oldest checkpoint.")
    ] = None,
    last: Annotated[int | None, typer.Option("--to", min=1, help="Last step; default: the last recorded step.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder of the replay; default: RUN-replay-N.")] = None,
    quiet: Quiet = False,
    json: AsJson = False,
) -> int:
    """Train steps of a run again from its recorded data, and show that the weights are the same bit for bit.

    A replay samples nothing and scores nothing. If a number or a bit differs from the recorded one, it names the first
    step and tensor that differ, and exits with code 4. With settings, it is a what-if on the same data and does not
    claim that anything is equal.

    \b
    Examples:
      posttrain replay runs/tiny-sort-grpo-1
      posttrain replay runs/tiny-sort-grpo-1 --from 51 --to 60
      posttrain replay runs/tiny-sort-grpo-1 algorithm=rloo train.learning_rate=1e-6
    """
    from posttrain.config.text import read_override

    folders, overrides = sort_arguments([run, *(settings or [])], "replay", REPLAY_OPTIONS)
    if len(folders) != 1:
        raise ConfigError(
            given=f"{len(folders)} folders: {', '.join(folders)}" if folders else "no run folder",
            allowed="one run, and settings as section.key=value",
            fix="posttrain replay runs/tiny-sort-grpo-1 --from 51",
        )
    with uncollected():
        from posttrain.train.replay import replay as train_again

    changes = dict(read_override(text) for text in overrides)
    say = lines_for(quiet=quiet, as_json=json)
    result = train_again(folders[0], first=first, last=last, output=output, say=say, **changes)
    answer(result.to_json(), result.render(), as_json=json)
    return result.exit_code


# --- demo ------------------------------------------------------------------------------------------------------------


def demo(
    seed: Annotated[int, typer.Option(help="Seed of data, model and sampling.")] = 0,
    output: Annotated[
        str | None, typer.Option(help="Run folder or URL.", show_default="the next free runs/...")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="Engine that samples: local, or vllm (the run starts a server).")
    ] = "local",
    quiet: Quiet = False,
    json: AsJson = False,
) -> int:
    """Train a small model on a CPU in about two minutes: a weak model, a verifiable reward, GRPO, and the proof.

    \b
    Examples:
      posttrain demo
      posttrain demo --seed 1 --output runs/second
      posttrain demo --engine vllm
    """
    from posttrain.tasks.demo import demo_config, require_improvement, verdict

    with uncollected():
        from posttrain.train.api import train

    run = train(demo_config(seed=seed, output=output, engine=engine), view=view_for(quiet=quiet, as_json=json))
    typer.echo(verdict(run.evaluation), err=json)
    require_improvement(run.evaluation)
    return finish(run, as_json=json)
