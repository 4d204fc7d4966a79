"""`posttrain data check SOURCE`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from posttrain.cli.output import AsJson, answer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

data_app = typer.Typer(help="Look at a dataset before anything is trained on it.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(data_app, name="data")


@data_app.command("check", no_args_is_help=True)
def check(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="File, glob, Hugging Face dataset name or task:<name>.")
    ],
    model: Annotated[str | None, typer.Option(help="Model or tokenizer: lengths in tokens, samples rendered.")] = None,
    prompt: Annotated[
        str | None, typer.Option(help='Prompt column, or a template such as "{Body} {Question}".')
    ] = None,
    answer_column: Annotated[str | None, typer.Option("--answer", help="Column of the gold answer.")] = None,
    split: Annotated[str, typer.Option(help="Split of a Hugging Face dataset; train or eval for a task.")] = "train",
    json: AsJson = False,
) -> int:
    """Detected format and columns, lengths, duplicates, what would be dropped and why, three rendered samples.

    \b
    Examples:
      posttrain data check gsm8k_train.jsonl
      posttrain data check svamp.jsonl --prompt "{Body} {Question}"
      posttrain data check sft.jsonl --model Qwen/Qwen3-0.6B --json
    """
    from posttrain.config import DataConfig
    from posttrain.data.inspect import inspect_data

    config = DataConfig(train=source, prompt=prompt, answer=answer_column, split=split)
    report = inspect_data(source, tokenizer=_tokenizer(model), config=config)
    answer(report.to_json(), report.render(), as_json=json)
    return 0 if report.usable else 2


def _tokenizer(model: str | None) -> PreTrainedTokenizerBase | None:
    if model is None:
        return None
    from posttrain.config import ModelConfig
    from posttrain.models.reading import Source, find_source, read_tokenizer
    from posttrain.tasks.tiny import resolve_model_path

    config = resolve_model_path(ModelConfig(path=model), seed=0)
    folder = Path(config.path).expanduser()
    alone = folder.is_dir() and not (folder / "config.json").exists()  # a tokenizer without a model is enough here
    return read_tokenizer(config, Source(str(folder), folder, {}) if alone else find_source(config))
