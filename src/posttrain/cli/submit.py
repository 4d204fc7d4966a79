"""`posttrain submit CONFIG [SECTION.KEY=VALUE ...] --cluster ADDRESS --output FOLDER`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from posttrain.cli.output import AsJson, answer, setting_keys
from posttrain.cli.runs import names_are_known, sort_arguments
from posttrain.errors import ConfigError

if TYPE_CHECKING:
    from posttrain.config import RunConfig

OPTIONS = ("--cluster", "--output", "--cpus", "--gpus", "--python", "--resume", "--no-wait", "--json", "--help")


def submit(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="YAML or TOML file, below the current directory.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SECTION.KEY=VALUE", help="Settings that override the file.", autocompletion=setting_keys
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="Run folder: an absolute path on storage that the whole cluster sees, or a URL.")
    ] = None,
    cluster: Annotated[
        str, typer.Option(help="Dashboard of a Ray cluster: http://HOST:8265, or auto for this machine's.")
    ] = "auto",
    cpus: Annotated[
        int, typer.Option(min=1, help="CPUs of the trainer, or of the process that watches its ranks.")
    ] = 1,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of the trainer; ranks get their own.")] = 0,
    python: Annotated[
        str | None, typer.Option(help="Path of Python on the cluster.", show_default="the path of this Python")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --output with its own settings.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Show what the job prints until it ends.")] = True,
    json: AsJson = False,
) -> int:
    """Train on a Ray cluster: trainer, engines and reward workers. Exits with the exit code of the run.

    The command also sends the files that the config names by relative paths, the folders of reward functions, and
    posttrain itself.

    \b
    Examples:
      posttrain submit my_run.yaml --cluster http://head:8265 --output /shared/runs/first
      posttrain submit my_run.yaml rollout.engines=4 --gpus 1 --output /shared/runs/second --no-wait
      posttrain submit my_run.yaml train.devices=16 rollout.engines=4 --output /shared/runs/third
      posttrain submit my_run.yaml --cluster http://head:8265 --output /shared/runs/first --resume
    """
    from posttrain.train.hosts import require_ray

    file, overrides, resolved = _read([config, *(settings or [])])
    require_ray(f"--cluster {cluster}")
    from posttrain.cluster.submit import Job, hand_in

    job = Job(
        config=file,
        overrides=overrides,
        output=output or resolved.output or "",
        cpus=cpus,
        gpus=gpus,
        python=python or sys.executable,
        resume=resume,
    )
    submitted = hand_in(job, resolved, cluster)
    typer.echo(f"job {submitted.name}; `ray job stop {submitted.name}` ends it", err=True)
    code = submitted.follow(lambda text: typer.echo(text, nl=False, err=json)) if wait else 0
    found = {"job": submitted.name, "folder": job.output, "exit_code": code if wait else None}
    answer(found, f"folder     {job.output}", as_json=json)
    return code


def _read(arguments: list[str]) -> tuple[str, list[str], RunConfig]:
    """Return the config file, the overrides and the resolved config. Raises ConfigError for mistakes in them."""
    from posttrain.bundles import needs_cluster
    from posttrain.config import check, load_config
    from posttrain.config.pipeline import holds_stages

    configs, overrides = sort_arguments(arguments, "submit", OPTIONS)
    if len(configs) != 1 or holds_stages(configs[0]):
        raise ConfigError(
            given=f"{len(configs)} configurations" if len(configs) != 1 else f"{configs[0]}, which has stages",
            allowed="the configuration of one run",
            fix="posttrain submit my_run.yaml --output /shared/runs/first",
        )
    resolved = load_config(configs[0], overrides, checks=[names_are_known])
    if needs_cluster(resolved.config):  # resolve it as the job will
        resolved = load_config(configs[0], [*overrides, "cluster=auto"], checks=[names_are_known])
    check(resolved, names_are_known)
    return configs[0], overrides, resolved.config
