"""`posttrain eval`, `chat` and `export`: verbs for a trained model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posttrain.cli.output import AnswerColumn, AsJson, PromptColumn, answer
from posttrain.errors import ConfigError, DataError
from posttrain.importing import uncollected

if TYPE_CHECKING:
    from posttrain.evaluate.chat import ChatSession
    from posttrain.evaluate.evaluation import Evaluation
    from posttrain.evaluate.given import GivenEvaluation

Rollout = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="rollout.KEY=VALUE", help="Engine that answers: rollout.engine=vllm, rollout.url=[...], ..."
    ),
]


def evaluate(
    model: Annotated[
        str, typer.Argument(metavar="MODEL|RUN", help="Model folder or name, or a run folder (its last checkpoint).")
    ],
    settings: Rollout = None,
    data: Annotated[str | None, typer.Option(help="Held-out data: file, glob, dataset name or task:NAME.")] = None,
    reward: Annotated[list[str] | None, typer.Option(help="Name, path.py:function or YAML entry; repeatable.")] = None,
    check: Annotated[list[str] | None, typer.Option(help="Independent check, given like a reward; repeatable.")] = None,
    prompt: PromptColumn = None,
    answer_column: AnswerColumn = None,
    samples: Annotated[
        int | None, typer.Option("--samples", "-k", min=0, help="Sampled answers per prompt; 0: greedy only.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="Temperature of the sampled answers.")] = None,
    max_prompts: Annotated[int | None, typer.Option(min=1, help="Use at most this many prompts.")] = None,
    max_completion_length: Annotated[int | None, typer.Option(min=1, help="Maximum tokens of an answer.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampled answers.")] = None,
    kind: Annotated[str | None, typer.Option("--as", help="Measure on given answers: pairs, labels, ...")] = None,
    answers: Annotated[Path | None, typer.Option(help="Write all answers and judgements to this JSONL file.")] = None,
    json: AsJson = False,
) -> int:
    """Score a model on held-out prompts: greedy, pass@k and majority vote, each with an interval.

    A run folder supplies its data, rewards and settings. For a model, options have the defaults of the config. A run
    that learned from given answers is measured as it was: by pair accuracy, AUC or loss. --as does so for any model.

    \b
    Examples:
      posttrain eval runs/tiny-sort-grpo-1
      posttrain eval runs/tiny-sort-grpo-1 -k 16 --answers answers.jsonl
      posttrain eval Qwen/Qwen3-0.6B --data gsm8k_test.jsonl --reward math -k 8
      posttrain eval my_model --data pairs.jsonl --as pairs
      posttrain eval my_model --data chat.jsonl --reward '{judge: {model: my_judge, mode: score}}'
      posttrain eval runs/svamp-grpo-1 rollout.engine=vllm
    """
    with uncollected():
        from posttrain.evaluate.api import evaluate as evaluate_model
        from posttrain.evaluate.given import evaluate_given, kind_named, learned_from_given
    model = _here(model)
    if kind is not None or (learned_from_given(model) and not reward and not check):
        judging = {"reward": reward, "check": check, "prompt": prompt, "answer": answer_column, "answers": answers}
        sampling = {"temperature": temperature, "max_completion_length": max_completion_length, "seed": seed}
        _refuse_sampling(settings, samples=samples, **judging, **sampling)
        return _answered(evaluate_given(model, data, kind=kind_named(kind), max_rows=max_prompts), as_json=json)
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
        rollout=_rollout(settings),
    )
    _write(evaluation, answers)
    return _answered(evaluation, as_json=json)


def _here(model: str) -> str:
    """Return the local folder of a run behind a URL. Any other name is returned unchanged."""
    from posttrain.config.urls import is_url
    from posttrain.store.fetching import folder_to_read

    return str(folder_to_read(model, checkpoints=True)) if is_url(model) else model


def _answered(measured: Evaluation | GivenEvaluation, *, as_json: bool) -> int:
    answer(measured.to_json(), measured.render(), as_json=as_json)
    return 0


def _write(evaluation: Evaluation, answers: Path | None) -> None:
    """Write the answers and the judges' judgements of them, if the user named a file."""
    if answers is not None:
        evaluation.write_answers(answers)
        evaluation.write_judgements(answers.with_suffix(".judgements.jsonl"))


def _rollout(settings: list[str] | None) -> dict[str, Any]:
    """Read the settings of the engine that answers, such as `rollout.engine=vllm`."""
    from posttrain.config.text import read_value

    found = dict[str, Any]()
    for setting in settings or []:
        name, _, text = setting.removeprefix("--").partition("=")
        if not name.startswith("rollout.") or not text:
            raise ConfigError(
                given=f"the argument {setting}",
                allowed="one model or run, and settings of the section rollout",
                fix="Write rollout.engine=vllm, or remove the argument.",
            )
        found[name.removeprefix("rollout.")] = read_value(text, setting)
    return found


def _refuse_sampling(settings: list[str] | None, **options: Any) -> None:
    """Raise ConfigError for settings and options of sampled answers and of rewards, which would do nothing."""
    names = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    if found := [*(settings or []), *names]:
        raise ConfigError(
            given=f"{', '.join(found)}, but a measurement on given answers samples nothing",
            allowed="--data, --max-prompts, --as and --json",
            fix="Leave the others out. To sample answers and score them, give --reward and --data, without --as.",
        )


def _entries(given: list[str] | None) -> list[Any] | None:
    """Return rewards as in a config: a name, or a mapping for text that begins with `{`."""
    from posttrain.config.text import read_value

    return None if given is None else [read_value(text, text) if text.startswith("{") else text for text in given]


# --- chat ------------------------------------------------------------------------------------------------------------


def chat(
    model: Annotated[
        str, typer.Argument(metavar="MODEL|RUN", help="Model folder or name, or a run folder (its last checkpoint).")
    ],
    settings: Rollout = None,
    message: Annotated[
        str | None, typer.Option("--message", "-m", help="Send this one message, print the answer and stop.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    temperature: Annotated[float, typer.Option(min=0, help="Sampling temperature; 0 is greedy.")] = 0.0,
    max_completion_length: Annotated[int, typer.Option(min=1, help="Maximum tokens of an answer.")] = 256,
    seed: Annotated[int, typer.Option(help="Seed of the answers, if the temperature is not 0.")] = 0,
    json: AsJson = False,
) -> int:
    """Chat with a model. Each line of the terminal or of standard input is one message.

    A model without a chat template continues the text. A line that cannot be answered is reported on standard error;
    the next lines are answered, and the exit code is 2.

    \b
    Examples:
      posttrain chat runs/tiny-sort-grpo-1
      posttrain chat runs/tiny-sort-grpo-1 -m "fbdaec>"
      echo "fbdaec>" | posttrain chat runs/tiny-sort-grpo-1 --json
      posttrain chat Qwen/Qwen3-0.6B rollout.engine=vllm
    """
    with uncollected():
        from posttrain.evaluate.chat import ChatSession

    session = ChatSession(
        model,
        system=system,
        temperature=temperature,
        max_completion_length=max_completion_length,
        seed=seed,
        rollout=_rollout(settings),
    )
    turns = []
    with session:
        for turn in _replies(session) if message is None else [{"message": message, "reply": session.ask(message)}]:
            turns.append(turn)
            if "error" in turn:
                typer.echo(turn["error"], err=True)
            elif not json:
                typer.echo(turn["reply"])
    if json:
        answer({"model": session.model_path, "turns": turns}, "", as_json=True)
    return DataError.exit_code if any("error" in turn for turn in turns) else 0


def _replies(session: ChatSession) -> Iterator[dict[str, str]]:
    """Ask each line of the terminal or of standard input that is not blank. Yields it with its reply or error."""
    for line in _lines():
        try:
            text = _text(line)
            if not text.strip():
                continue
            turn = {"message": text, "reply": session.ask(text)}
        except DataError as error:
            shown = line if isinstance(line, str) else line.decode("utf-8", "backslashreplace")
            turn = {"message": shown.rstrip("\r\n"), "error": f"{type(error).__name__}: {error}"}
        yield turn


def _lines() -> Iterator[str | bytes]:
    """Yield the lines of the terminal or of standard input until it ends. Standard input gives bytes, because a line
    that cannot be decoded would otherwise take the next lines with it."""
    if not sys.stdin.isatty():
        yield from getattr(sys.stdin, "buffer", sys.stdin)
        return
    while True:
        try:
            yield input("you> ")
        except EOFError:
            return
        except UnicodeDecodeError as error:
            yield error.object


def _text(line: str | bytes) -> str:
    """Return the text of a line. Raises DataError if it is not in the encoding of the locale."""
    if isinstance(line, str):
        return line.rstrip("\r\n")
    try:
        return line.decode(sys.stdin.encoding, sys.stdin.errors or "strict").rstrip("\r\n")
    except UnicodeDecodeError as error:  # in a locale other than C, Python decodes strictly
        raise DataError(
            given=f"a line of standard input that is not {error.encoding.upper()} ({error.reason})",
            allowed="text in the encoding of the locale",
            fix="Convert the text, for example with `iconv`.",
        ) from error


# --- export ----------------------------------------------------------------------------------------------------------


def export(
    source: Annotated[
        str, typer.Argument(metavar="RUN|MODEL", help="Run folder, model folder or name, or folder of LoRA adapters.")
    ],
    output: Annotated[
        Path | None,
        typer.Argument(metavar="[OUT]", help="New folder. Default: RUN/export/hf, or MODEL-hf in this directory."),
    ] = None,
    to: Annotated[str, typer.Option(help="hf: a Hugging Face folder; gguf: one file for llama.cpp.")] = "hf",
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16, float16; for gguf also q8_0. Default: the source's.")
    ] = None,
    step: Annotated[int | None, typer.Option(min=0, help="Checkpoint of the run; default: the newest.")] = None,
    base: Annotated[str | None, typer.Option(help="Base model of LoRA adapters, if it has moved.")] = None,
    prompts: Annotated[
        str | None, typer.Option(help="File of prompts to replay. Default: held-out prompts of the run.")
    ] = None,
    num_prompts: Annotated[int, typer.Option(min=1, help="Number of prompts to replay.")] = 8,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Greedy tokens per prompt.")] = 32,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing export.")] = False,
    device: Annotated[str, typer.Option(help="Where to run the trained model: auto, cpu or cuda.")] = "auto",
    json: AsJson = False,
) -> int:
    """Export the trained model to a folder that other programs can open, and prove the export by replaying prompts
    through it.

    The command merges LoRA adapters and writes a model card, README.md, with data, algorithm, settings and results.
    Plain transformers, in its own process, must give the same greedy tokens and log-probabilities as the trained model.
    Otherwise the command fails, says where they differ, and leaves nothing behind.

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
