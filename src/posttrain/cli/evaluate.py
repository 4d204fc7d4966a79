"""`posttrain eval MODEL|RUN`"""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command("eval")(evaluate)


def evaluate(
    model: Annotated[str, typer.Argument(help="Model folder or name, or a run folder (its last checkpoint).")],
    data: Annotated[str | None, typer.Option(help="Held-out data; a run folder brings its own.")] = None,
    reward: Annotated[list[str] | None, typer.Option(help="Built-in reward or path.py:function; repeatable.")] = None,
    prompt: Annotated[
        str | None, typer.Option(help='Prompt column, or a template such as "{Body} {Question}".')
    ] = None,
    samples: Annotated[int, typer.Option("--samples", "-k", help="Sampled answers per prompt; 0: greedy only.")] = 4,
    temperature: Annotated[float, typer.Option(help="Temperature of the sampled answers.")] = 1.0,
    max_prompts: Annotated[int | None, typer.Option(help="Use at most this many prompts.")] = None,
    max_completion_length: Annotated[int | None, typer.Option(help="Tokens; a run folder brings its own.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampled answers.")] = 0,
    answers: Annotated[Path | None, typer.Option(help="Write every answer to this JSONL file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Score a model on held-out prompts: greedy, pass@k and majority vote, each with an interval.

    \b
    posttrain eval runs/demo
    posttrain eval Qwen/Qwen3-0.6B --data gsm8k_test.jsonl --reward math -k 8
    """
    from posttrain.evaluate.api import evaluate as evaluate_model

    evaluation = evaluate_model(
        model,
        data,
        reward,
        k=samples,
        temperature=temperature,
        max_prompts=max_prompts,
        max_completion_length=max_completion_length,
        prompt=prompt,
        seed=seed,
    )
    if answers is not None:
        evaluation.write_answers(answers)
    typer.echo(jsonlib.dumps(evaluation.to_json(), indent=2) if json else evaluation.render())
    return 0
