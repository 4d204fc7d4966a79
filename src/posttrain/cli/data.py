"""`posttrain data check SOURCE`"""

from __future__ import annotations

from typing import Annotated

import typer

from posttrain.cli.output import AsJson, answer

data_app = typer.Typer(help="Look at a dataset before anything is trained on it.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(data_app, name="data")


@data_app.command("check", no_args_is_help=True)
def check(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="File, glob, Hugging Face dataset name or task:<name>.")
    ],
    model: Annotated[str | None, typer.Option(help="Model or tokenizer folder: lengths in tokens, rendered.")] = None,
    prompt: Annotated[
        str | None, typer.Option(help='Prompt column, or a template such as "{Body} {Question}".')
    ] = None,
    json: AsJson = False,
) -> int:
    """Detected format and columns, lengths, duplicates, what would be dropped and why, three rendered samples.

    \b
    Examples:
      posttrain data check gsm8k_train.jsonl
      posttrain data check svamp.jsonl --prompt "{Body} {Question}"
      posttrain data check sft.jsonl --model Qwen/Qwen3-0.6B --json
    """
    from posttrain.data.inspect import inspect_data

    report = inspect_data(source, tokenizer=_tokenizer(model), prompt=prompt)
    answer(report.to_json(), report.render(), as_json=json)
    return 0 if report.usable else 2


def _tokenizer(model: str | None):
    if model is None:
        return None
    from posttrain.models.load import load_tokenizer

    return load_tokenizer(model)
