"""`posttrain data check PATH`"""

from __future__ import annotations

import json as jsonlib
from typing import Annotated

import typer

data_app = typer.Typer(help="Look at a dataset before anything is trained on it.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(data_app, name="data")


@data_app.command("check")
def check(
    source: Annotated[str, typer.Argument(help="File, glob, Hugging Face dataset name or task:<name>.")],
    model: Annotated[str | None, typer.Option(help="Model or tokenizer folder: lengths in tokens, rendered.")] = None,
    prompt: Annotated[
        str | None, typer.Option(help='Prompt column, or a template such as "{Body} {Question}".')
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Detected format and columns, lengths, duplicates, what would be dropped and why, three rendered samples.

    \b
    posttrain data check gsm8k_train.jsonl
    posttrain data check svamp.jsonl --prompt "{Body} {Question}" --model Qwen/Qwen3-0.6B
    """
    from posttrain.data import inspect_data

    report = inspect_data(source, tokenizer=_tokenizer(model), prompt=prompt)
    typer.echo(jsonlib.dumps(report.to_json(), indent=2) if json else report.render())
    return 0 if report.usable else 2


def _tokenizer(model: str | None):
    if model is None:
        return None
    from posttrain.models.load import load_tokenizer

    return load_tokenizer(model)
