"""`posttrain export RUN|MODEL [OUT]`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from posttrain.cli.output import AsJson, answer


def register(app: typer.Typer) -> None:
    app.command("export", no_args_is_help=True)(export)


def export(
    source: Annotated[
        str, typer.Argument(metavar="RUN|MODEL", help="Run folder, model folder or name, or folder of LoRA adapters.")
    ],
    output: Annotated[
        Path | None, typer.Argument(metavar="[OUT]", help="New folder; default RUN/export/hf, or MODEL-hf here.")
    ] = None,
    to: Annotated[str, typer.Option(help="hf: a Hugging Face folder; gguf: one file for llama.cpp.")] = "hf",
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16, float16; for gguf also q8_0. Default: that of the source.")
    ] = None,
    step: Annotated[int | None, typer.Option(min=0, help="Checkpoint of the run; default: the newest.")] = None,
    base: Annotated[str | None, typer.Option(help="Base model of LoRA adapters, when it has moved.")] = None,
    prompts: Annotated[
        str | None, typer.Option(help="Replay these prompts; default: held-out ones of the run.")
    ] = None,
    num_prompts: Annotated[int, typer.Option(min=1, help="Prompts to replay.")] = 8,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Greedy tokens for each.")] = 32,
    force: Annotated[bool, typer.Option("--force", help="Replace an export that is there.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    json: AsJson = False,
) -> int:
    """Write the trained model as a folder that others open, and prove it by replaying prompts through what was written.

    LoRA adapters are merged; README.md becomes a model card with data, algorithm, settings and results. Plain
    transformers, in a process of its own, has to give the same greedy tokens and log-probabilities as the trained
    model; otherwise the command fails, says where, and leaves nothing behind.

    \b
    Examples:
      posttrain export runs/tiny-sort-grpo-1
      posttrain export runs/tiny-sort-grpo-1 sorter --dtype bfloat16
      posttrain export runs/tiny-sort-grpo-1 sorter-gguf --to gguf --dtype q8_0
      posttrain export my-adapters merged --base Qwen/Qwen3-0.6B --prompts questions.jsonl
    """
    from posttrain.export import export as export_model

    exported = export_model(
        source,
        output,
        to=to,  # type: ignore[arg-type]
        dtype=dtype,
        step=step,
        base=base,
        prompts=prompts,
        num_prompts=num_prompts,
        max_new_tokens=max_new_tokens,
        force=force,
        device=device,
    )
    answer(exported.to_json(), exported.render(), as_json=json)
    return 0
