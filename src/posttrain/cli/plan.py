"""`posttrain plan [CONFIG] [SECTION.KEY=VALUE ...]`."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from posttrain.cli.output import AsJson, answer
from posttrain.cli.runs import sort_arguments
from posttrain.errors import ConfigError
from posttrain.shown import shown

Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[CONFIG] [SECTION.KEY=VALUE]", help="YAML or TOML file, and settings that override it."),
]
Model = Annotated[
    str | None,
    typer.Option(help="Model to plan for without a config: size class (7b, 30b-a3b), folder or config.json."),
]
Algorithm = Annotated[str | None, typer.Option(help="Algorithm to plan for without a config.")]
Gpus = Annotated[str | None, typer.Option(help="GPUs to plan for, such as 8xH100. Default: this machine.")]
Lora = Annotated[bool, typer.Option("--lora", help="Train LoRA adapters of the default rank: lora={}.")]
GroupSize = Annotated[int | None, typer.Option(help="sampling.group_size")]
PromptsPerStep = Annotated[int | None, typer.Option(help="train.prompts_per_step")]
MaxCompletionLength = Annotated[int | None, typer.Option(help="sampling.max_completion_length")]
Steps = Annotated[int | None, typer.Option(help="train.steps")]
PromptLength = Annotated[int | None, typer.Option(help="Tokens of the longest prompt, if no setting gives them.")]
MeanCompletionLength = Annotated[
    int | None, typer.Option(help="Mean tokens of an answer, or of one turn if it has several, to estimate the time.")
]
MeanTurns = Annotated[
    float | None, typer.Option(help="Mean turns of a trajectory, to estimate the time. Needs a config with turns.")
]
GivenLength = Annotated[
    int | None,
    typer.Option(help="Mean tokens that tools or an environment return between two turns. Needs a config with turns."),
]
CallSeconds = Annotated[
    float | None,
    typer.Option(
        help="Seconds that tools or an environment of the config take; `posttrain reward test` measures them."
    ),
]
LengthSpread = Annotated[
    float | None,
    typer.Option(help="Sigma of the log-normal answer lengths, if engines sample while training runs. Default: 1.0."),
]
Engine = Annotated[str | None, typer.Option(help="Engine that samples: shared, copy or separate (its own server).")]
EngineGpus = Annotated[int, typer.Option(help="Number of devices for separate engines.")]
EngineTensor = Annotated[
    int | None, typer.Option(help="Devices of one separate engine. Default: all of them, at most those of one machine.")
]
Sharding = Annotated[
    str | None,
    typer.Option(
        help="State that is sharded: none, optimizer, gradients, full (FSDP) or hybrid (full in each machine). "
        "Default: `train.shard`."
    ),
]
Tensor = Annotated[
    int | None,
    typer.Option(help="Degree of tensor parallelism: devices that divide each matrix. Default: `train.tensor`."),
]
Network = Annotated[
    float | None, typer.Option(help="GB/s from each device to other machines. Default: the value in the table.")
]
Price = Annotated[float | None, typer.Option(help="Dollars per device and hour. Default: the usual range.")]
MainMemory = Annotated[
    float | None,
    typer.Option(help="GiB of free main memory per machine, for train.cpu_offload. Default: this machine's."),
]
Probe = Annotated[bool, typer.Option("--probe", help="Measure on this machine first, with random weights.")]
SETTINGS = ("sampling.group_size", "train.prompts_per_step", "sampling.max_completion_length", "train.steps")
"""Settings that have an option of their own."""


def plan(
    arguments: Arguments = None,
    model: Model = None,
    algorithm: Algorithm = None,
    gpus: Gpus = None,
    lora: Lora = False,
    group_size: GroupSize = None,
    prompts_per_step: PromptsPerStep = None,
    max_completion_length: MaxCompletionLength = None,
    steps: Steps = None,
    prompt_length: PromptLength = None,
    mean_completion_length: MeanCompletionLength = None,
    mean_turns: MeanTurns = None,
    given_length: GivenLength = None,
    call_seconds: CallSeconds = None,
    length_spread: LengthSpread = None,
    engine: Engine = None,
    engine_gpus: EngineGpus = 1,
    engine_tensor: EngineTensor = None,
    sharding: Sharding = None,
    tensor: Tensor = None,
    network: Network = None,
    price: Price = None,
    main_memory: MainMemory = None,
    probe: Probe = False,
    json: AsJson = False,
) -> int:
    """Estimate whether a run fits, how long it takes, what it costs and how to make it fit. Downloads nothing.

    \b
    Examples:
      posttrain plan my_run.yaml
      posttrain plan --model 70b --algorithm sft --gpus 64xH100 --tensor 8
      posttrain plan --model 7b --algorithm grpo --gpus l40s --lora --group-size 16 --max-completion-length 2048
      posttrain plan my_tools.yaml --gpus rtx-4090 --given-length 200 --call-seconds 0.5 --mean-turns 2
      posttrain plan my_run.yaml --probe
    """
    config, overrides = _config_and_settings(arguments or [])
    settings = zip(SETTINGS, (group_size, prompts_per_step, max_completion_length, steps), strict=True)
    overrides += [f"{name}={value}" for name, value in settings if value is not None] + (["lora={}"] if lora else [])
    how = {
        "engine": _one_of("engine", engine, ("shared", "copy", "separate")),
        "engine_ranks": engine_gpus,
        "engine_tensor": engine_tensor,
        "sharding": _one_of("sharding", sharding, ("none", "optimizer", "gradients", "full", "hybrid")),
        "tensor": tensor,
        "network": network,
        "mean_completion_tokens": mean_completion_length,
        "mean_turns": mean_turns,
        "given_tokens": given_length,
        "call_seconds": call_seconds,
        "length_spread": length_spread,
        "prompt_tokens": prompt_length,
        "price": price,
        "main_memory": main_memory,
    }
    planned = _planned(config, overrides, how, probe=probe, model=model, algorithm=algorithm, gpus=gpus)
    answer(planned.to_json(), planned.render(), as_json=json)
    return 0


def _config_and_settings(arguments: list[str]) -> tuple[str | None, list[str]]:
    configs, overrides = sort_arguments(arguments, verb="plan", options=_options())
    if len(configs) > 1:
        raise ConfigError(given=f"{len(configs)} configuration files: {', '.join(configs)}", allowed="one, or none")
    return (configs[0] if configs else None), overrides


def _planned(
    config: str | None, overrides: list[str], how: dict[str, Any], *, probe: bool, gpus: str | None, **named: str | None
) -> Any:
    """Return the result to show: the plan of a run or of a pipeline, or a plan next to a measurement."""
    from posttrain.config.pipeline import holds_stages
    from posttrain.lab.plan.api import make_plan

    staged = config is not None and holds_stages(config)
    if probe:
        _check_probe(config if staged else None, gpus)
    if config is not None and staged:
        from posttrain.lab.plan.api import plan_pipeline

        return plan_pipeline(config, overrides, gpus=gpus, **how)
    made = make_plan(config, overrides, gpus=gpus, **named, **how)
    if not probe:
        return made
    from posttrain.lab.plan.probe import probe_and_plan

    return probe_and_plan(made.config, made.target)


def _check_probe(pipeline: str | None, gpus: str | None) -> None:
    """Raise ConfigError for options that a probe of this machine cannot measure."""
    if gpus is not None:
        raise ConfigError(
            given=f"--probe and --gpus {gpus}",
            allowed="--probe without --gpus: it measures the machine that it runs on",
            fix=f"Leave one of them out. To plan for a machine with {gpus}, run the probe on that machine.",
        )
    if pipeline is not None:
        raise ConfigError(
            given=f"--probe and {pipeline}, which has stages",
            allowed="--probe with the configuration of a single run",
            fix="Measure with a single model: posttrain plan --model 0.5b --algorithm grpo --probe. Later plans on "
            f"this machine use the measurement, and so does posttrain plan {shown(pipeline)}.",
        )


def _options() -> tuple[str, ...]:
    """Return all options as the user writes them."""
    names = (name for name in inspect.signature(plan).parameters if name != "arguments")
    return (*(f"--{name.replace('_', '-')}" for name in names), "--help")


def _one_of(option: str, value: Any, allowed: tuple[Any, ...]) -> Any:
    if value is None or value in allowed:
        return value
    raise ConfigError(
        given=f"--{option} {value}", allowed=", ".join(map(str, allowed)), fix=f"For example --{option} {allowed[-1]}."
    )
