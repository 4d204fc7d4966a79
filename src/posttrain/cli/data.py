"""`posttrain data check SOURCE` and `posttrain data answers MODEL SOURCE`."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from posttrain.cli.output import AnswerColumn, AsJson, answer

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedTokenizerBase

Kind = Literal["prompts", "examples", "pairs", "labels", "ratings", "steps"]

data_app = typer.Typer(
    help="Inspect data before training on it, or make examples from a model's own answers.", no_args_is_help=True
)


class Facts(NamedTuple):
    """The facts about a model that matter for checking data."""

    tokenizer: PreTrainedTokenizerBase | None = None
    eos_ids: frozenset[int] | None = None
    context_length: int | None = None


def _named(given: str) -> tuple[str, str]:
    ours, equals, theirs = given.partition("=")
    if not (ours and equals and theirs):
        raise typer.BadParameter(f"{given!r}: write posttrain's name, =, and the name in the data, as in chosen=better")
    return ours, theirs


@data_app.command("check", no_args_is_help=True)
def check(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="File, glob, Hugging Face dataset name or task:<name>.")
    ],
    model: Annotated[
        str | None,
        typer.Option(help="Model or tokenizer that gives token counts, the context limit and the chat template."),
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Drop rows of more tokens, as a run with this context length would.")
    ] = None,
    kind: Annotated[Kind | None, typer.Option("--as", help="Kind of data to read it as, if it fits several.")] = None,
    prompt: Annotated[
        str | None, typer.Option(help='Prompt column, or a template such as "{Body} {Question}".')
    ] = None,
    answer_column: AnswerColumn = None,
    column: Annotated[
        list[str] | None,
        typer.Option(help="Column that has another name in the data, such as chosen=better; repeatable."),
    ] = None,
    split: Annotated[str, typer.Option(help="Split of a Hugging Face dataset; train or eval for a task.")] = "train",
    json: AsJson = False,
) -> int:
    """Show how posttrain reads data: format, columns, lengths, duplicates, dropped rows and why, three rendered rows.

    \b
    Examples:
      posttrain data check gsm8k_train.jsonl
      posttrain data check svamp.jsonl --prompt "{Body} {Question}"
      posttrain data check ultrafeedback.jsonl --as ratings
      posttrain data check judged.csv --column chosen=good_reply --column rejected=bad_reply
      posttrain data check sft.jsonl --model Qwen/Qwen3-0.6B --max-length 2048 --json
    """
    from posttrain.config import DataConfig
    from posttrain.data.inspection import inspect_data

    columns = dict(_named(one) for one in column or ())
    config = DataConfig(train=source, columns=columns, prompt=prompt, answer=answer_column, split=split)
    facts = _facts(model)
    report = inspect_data(
        source,
        tokenizer=facts.tokenizer,
        config=config,
        eos_ids=facts.eos_ids,
        max_length=max_length or facts.context_length,
        kind=kind,
    )
    answer(report.to_json(), report.render(), as_json=json)
    return 0 if report.usable else 2


@data_app.command("answers", no_args_is_help=True)
def answers(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Model folder or name.")],
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Prompts: file, glob, dataset name or task:<name>.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="JSONL file to write the examples to.")],
    reward: Annotated[
        list[str] | None,
        typer.Option(help="Keep only answers that this reward accepts; repeatable: rewards are summed."),
    ] = None,
    at_least: Annotated[float, typer.Option(help="Keep an answer if its sum of rewards is at least this.")] = 1.0,
    samples: Annotated[int, typer.Option(min=1, help="Answers sampled for each prompt; the best is kept.")] = 1,
    temperature: Annotated[float, typer.Option(min=0.01, help="Sampling temperature.")] = 0.7,
    max_completion_length: Annotated[
        int, typer.Option(min=1, help="Maximum tokens of an answer; cut ones are dropped.")
    ] = 256,
    max_rows: Annotated[int | None, typer.Option(min=1, help="Use only this many prompts: the first ones.")] = None,
    prompt: Annotated[
        str | None, typer.Option(help='Prompt column, or a template such as "{Body} {Question}".')
    ] = None,
    answer_column: AnswerColumn = None,
    first_sentence: Annotated[
        bool,
        typer.Option("--first-sentence", help="Keep only the first sentence, even of a cut-off answer."),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the answers.")] = 0,
    json: AsJson = False,
) -> int:
    """Save a model's own answers as examples. Train on them so that the model does not forget while it learns a task,
    or to start RL from its best answers.

    \b
    Examples:
      posttrain data answers my-model prompts.jsonl -o own.jsonl
      posttrain data answers my-model svamp.jsonl -o right.jsonl --prompt "{Body} {Question}" --reward math --samples 8
      posttrain data answers my-model chats.jsonl -o replay.jsonl --first-sentence --max-completion-length 40
    """
    from posttrain.evaluate.own_answers import own_answers

    found = own_answers(
        model,
        source,
        reward,
        samples=samples,
        at_least=at_least,
        temperature=temperature,
        max_completion_length=max_completion_length,
        max_rows=max_rows,
        prompt=prompt,
        answer=answer_column,
        first_sentence=first_sentence,
        seed=seed,
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("".join(dumps(row, ensure_ascii=False) + "\n" for row in found), encoding="utf-8")
    answer({"rows": len(found), "output": str(output)}, f"{output}: {len(found)} examples", as_json=json)
    return 0


def _facts(model: str | None) -> Facts:
    """Read the facts about a model without its weights. A folder with only a tokenizer gives only the tokenizer."""
    if model is None:
        return Facts()
    from posttrain.config import ModelConfig
    from posttrain.models.context import context_window
    from posttrain.models.load import find_eos_ids
    from posttrain.models.named import resolve_model_path
    from posttrain.models.reading import ModelSource, find_source, read_config, read_tokenizer

    config = resolve_model_path(ModelConfig(path=model), seed=0)
    folder = Path(config.path).expanduser()
    if folder.is_dir() and not (folder / "config.json").exists():
        return Facts(tokenizer=read_tokenizer(config, ModelSource(str(folder), folder, {})))
    source = find_source(config)
    tokenizer, text = read_tokenizer(config, source), read_config(config, source).get_text_config()
    eos_ids = find_eos_ids(tokenizer, _generation_config(source.path), text.vocab_size)
    return Facts(tokenizer, eos_ids, context_window(text))


def _generation_config(path: str) -> GenerationConfig | None:
    """Return the model's generation config, if any: it may list EOS ids that the tokenizer does not know."""
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(path)
    except OSError:
        return None
