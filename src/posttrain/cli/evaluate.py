"""`posttrain eval MODEL|RUN`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from posttrain.cli.output import AsJson, answer
from posttrain.importing import uncollected


def register(app: typer.Typer) -> None:
    app.command("eval", no_args_is_help=True)(evaluate)


def evaluate(
    model: Annotated[
        str, typer.Argument(metavar="MODEL|RUN", help="Model folder or name, or a run folder (its last checkpoint).")
    ],
    data: Annotated[str | None, typer.Option(help="Held-out data: file, glob, dataset name or task:NAME.")] = None,
    reward: Annotated[list[str] | None, typer.Option(help="Name, path.py:function or YAML entry; repeatable.")] = None,
    check: Annotated[list[str] | None, typer.Option(help="Independent check, named like a reward; repeatable.")] = None,
    prompt: Annotated[str | None, typer.Option(help='Prompt column, or a template: "{Body} {Question}".')] = None,
    answer_column: Annotated[str | None, typer.Option("--answer", help="Column of the gold answer.")] = None,
    samples: Annotated[
        int | None, typer.Option("--samples", "-k", min=0, help="Sampled answers per prompt; 0: greedy only.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="Of the sampled answers.")] = None,
    max_prompts: Annotated[int | None, typer.Option(min=1, help="Use at most this many prompts.")] = None,
    max_completion_length: Annotated[int | None, typer.Option(min=1, help="Tokens.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampled answers.")] = None,
    kind: Annotated[str | None, typer.Option("--as", help="By given answers: pairs, labels, examples, ...")] = None,
    answers: Annotated[Path | None, typer.Option(help="Write all answers to this JSONL file, and judgements.")] = None,
    json: AsJson = False,
) -> int:
    """Score a model on held-out prompts: greedy, pass@k and majority vote, each with an interval.

    A run folder brings its data, rewards and settings; what is not given for a model has the default of the config.
    What learned from given answers is measured as its run did: pair accuracy, AUC or loss; --as does so for any model.

    \b
    Examples:
      posttrain eval runs/tiny-sort-grpo-1
      posttrain eval runs/tiny-sort-grpo-1 -k 16 --answers answers.jsonl
      posttrain eval Qwen/Qwen3-0.6B --data gsm8k_test.jsonl --reward math -k 8
      posttrain eval my_model --data pairs.jsonl --as pairs
      posttrain eval my_model --data chat.jsonl --reward '{judge: {model: my_judge, mode: score}}'
    """
    with uncollected():
        from posttrain.evaluate.api import evaluate as evaluate_model
    from posttrain.evaluate.given import evaluate_given, kind_named, learned_from_given

    if kind is not None or (learned_from_given(model) and not reward and not check):
        found = evaluate_given(model, data, kind=kind_named(kind), max_rows=max_prompts)
        answer(found.to_json(), found.render(), as_json=json)
        return 0
    evaluation = evaluate_model(
        model,
        data,
        _entries(reward),
        k=samples,
        check=_entries(check),
        temperature=temperature,
        max_prompts=max_prompts,
        max_completion_length=max_completion_length,
        prompt=prompt,
        answer=answer_column,
        seed=seed,
    )
    if answers is not None:
        evaluation.write_answers(answers)
        evaluation.write_judgements(answers.with_suffix(".judgements.jsonl"))
    answer(evaluation.to_json(), evaluation.render(), as_json=json)
    return 0


def _entries(given: list[str] | None) -> list[Any] | None:
    """Rewards as they stand in a config, for those that are more than a name."""
    from posttrain.config.text import read_value

    return None if given is None else [read_value(text, text) if text.startswith("{") else text for text in given]
