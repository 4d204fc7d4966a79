"""`posttrain engine install vllm`"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from posttrain.cli.output import AsJson, answer

engine_app = typer.Typer(help="Install engines that need their own environment.", no_args_is_help=True)


class Engine(StrEnum):
    """An engine that can be installed."""

    vllm = "vllm"


class Device(StrEnum):
    """The kind of device that an engine is built for."""

    cpu = "cpu"
    cuda = "cuda"


@engine_app.command("install", no_args_is_help=True)
def install(
    engine: Annotated[Engine, typer.Argument(metavar="ENGINE", help="The engine to install: vllm.")],
    device: Annotated[
        Device | None, typer.Option(help="Device to build for; default: the one that the machine has.")
    ] = None,
    json: AsJson = False,
) -> int:
    """Install an engine in its own environment. vLLM needs it because it pins other versions of torch and transformers
    than the trainer.

    Run it once for each machine. The environment takes 4 GB for a CPU and more with CUDA. It is in
    `~/.cache/posttrain/engines`, or in the folder that the environment variable POSTTRAIN_ENGINES names.

    \b
    Examples:
      posttrain engine install vllm
      posttrain engine install vllm --device cpu
    """
    from posttrain.engine_environment import install as make

    place = make(device.value if device else "")
    answer({"engine": engine.value, "folder": str(place)}, f"{engine.value} is installed in {place}", as_json=json)
    return 0
