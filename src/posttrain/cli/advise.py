"""`posttrain advise` recommends an algorithm; `posttrain init` writes a first project.

`advise` builds a flag for each field of `Facts`, so that no fact is declared twice. It does so when somebody asks for
its flags: importing the facts takes longer than the rest of `posttrain --help`.
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from posttrain.cli.output import AsJson, answer
from posttrain.errors import ConfigError

if TYPE_CHECKING:
    from posttrain.lab.init import Question


def advise() -> None:
    """Recommend algorithms for a task, a model and a machine: ranked, with reasons, costs, pitfalls and a config.

    Every flag is optional. On a terminal without flags, the command asks some questions; Enter skips one.

    \b
    Examples:
      posttrain advise
      posttrain advise --data verifier --goal reasoning --size 7b --gpus 8xH100
      posttrain advise --data pairs --priority memory --size 3b --gpus 1x24 --write run.yaml
      posttrain advise --data thumbs --json
    """


def recommend(
    details: Annotated[int, typer.Option(min=0, max=3, help="How many recommendations to show in full.")] = 0,
    write: Annotated[
        Path | None, typer.Option(help="Write the config of the first recommendation to this file.")
    ] = None,
    ask: Annotated[
        bool | None,
        typer.Option(
            "--ask/--no-ask",
            help="Ask for the facts that no flag gives. Default: ask on a terminal if there are no flags.",
        ),
    ] = None,
    json: AsJson = False,
    **flags: Any,
) -> int:
    """Do what `advise` says, with its options."""
    from posttrain.lab.advise.advisor import advise as advise_on
    from posttrain.lab.advise.facts import Facts
    from posttrain.lab.advise.questions import ask_for, machine

    told = {name: value for name, value in flags.items() if value is not None}
    if "gpus" in told:
        told |= machine(told.pop("gpus"))
    facts = Facts(**told)
    if ask if ask is not None else not told and not json and sys.stdin.isatty():
        facts = ask_for(facts, _typed, lambda text: typer.echo(text, err=True))
    advice = advise_on(facts)
    if write is not None:
        _write(write, advice.best.config if advice.best else None)
    answer(advice.to_json(), advice.render(details=details), as_json=json)
    return 0


class AdviseCommand(TyperCommand):
    """`advise`, with the options of `recommend` and one flag for each fact."""

    @functools.cached_property
    def whole(self) -> Any:
        app = typer.Typer(add_completion=False)
        app.command(self.name)(_with_facts(recommend))
        return typer.main.get_command(app)

    def get_params(self, ctx: Any) -> list[Any]:
        return self.whole.get_params(ctx)

    def invoke(self, ctx: Any) -> Any:
        return self.whole.invoke(ctx)


def _with_facts(command: Callable[..., int]) -> Callable[..., int]:
    """Return the command with its `**flags` replaced by one flag for each fact."""

    @functools.wraps(command)
    def run(**given: Any) -> int:
        return command(**given)

    hints = typing.get_type_hints(command, include_extras=True)
    own = [p.replace(annotation=hints[p.name]) for p in inspect.signature(command).parameters.values()]
    named = [p for p in own if p.kind is not inspect.Parameter.VAR_KEYWORD]
    parameters = [*_flags(), *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in named)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    del run.__wrapped__  # typer would read the signature of the command itself
    return run


def _flags() -> Iterator[inspect.Parameter]:
    """Yield the flags. A boolean fact has two flags; any other fact is read from text, as in a file."""
    from posttrain.lab.advise.facts import Facts

    for name, told in Facts.model_fields.items():
        option, text = f"--{name.replace('_', '-')}", " ".join((told.description or "").split())
        if told.annotation == bool | None:
            kind = Annotated[bool | None, typer.Option(f"{option}/--no-{option[2:]}", help=text, show_default=False)]
        else:
            about = f"{text} Or write 8xH100, or 8x80 for GPUs of 80 GB." if name == "gpus" else text
            kind = Annotated[str | None, typer.Option(option, help=about, show_default=False)]
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def _typed(question: str) -> str:
    """Return the next line of stdin. The question goes to stderr, so that stdout carries only the advice."""
    typer.echo(question, nl=False, err=True)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


def _write(path: Path, config: str | None) -> None:
    if config is None:
        raise ConfigError(
            given="--write, but no algorithm can be recommended yet",
            allowed="facts that describe data an algorithm can learn from",
            fix="Run `posttrain advise` without --write: it says what to get first.",
        )
    if path.exists():
        raise ConfigError(given=f"{path} exists already", allowed="the name of a new file", fix="Name another file.")
    path.write_text(config, encoding="utf-8")


# --- init ------------------------------------------------------------------------------------------------------------


def init(
    folder: Annotated[
        Path | None, typer.Argument(metavar="FOLDER", help="Folder to write the project to.", show_default="my-run")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="What to learn from: answers, function, environment, pairs, thumbs or demonstrations.",
            show_default="answers",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model folder, Hugging Face name, or tiny.", show_default="tiny")
    ] = None,
    where: Annotated[str | None, typer.Option(help="Where to train: auto, cpu or gpu.", show_default="auto")] = None,
    goal: Annotated[
        str | None,
        typer.Option(help="What matters most: balance, quality, stability, speed or memory.", show_default="balance"),
    ] = None,
    example: Annotated[
        str | None,
        typer.Option(help="Instead, write a complete example that improves a real model: siblings. It needs --model."),
    ] = None,
    defaults: Annotated[bool, typer.Option("--defaults", "-y", help="Ask nothing and use the defaults.")] = False,
    json: AsJson = False,
) -> int:
    """Create a project that runs: config, reward, sample data and a README.

    On a terminal the command asks five questions, except those that flags answer. Otherwise it asks nothing.
    It never overwrites a file.

    \b
    Examples:
      posttrain init
      posttrain init my-run --data pairs --model Qwen/Qwen3-0.6B --where gpu
      posttrain init my-run --data function -y --json
      posttrain init siblings --example siblings --model HuggingFaceTB/SmolLM2-135M-Instruct
    """
    from posttrain.lab.init import QUESTIONS, Answers, make_example, make_project

    if example is not None:
        _only_with_example({"data": data, "where": where, "goal": goal})
        project = make_example(example, model or "tiny", folder or Path(example))
        answer(project.to_json(), project.render(), as_json=json)
        return 0
    given = {"data": data, "model": model, "where": where, "goal": goal, "folder": folder and str(folder)}
    for question in QUESTIONS:
        if given[question.key] is not None:
            question.check(str(given[question.key]))
    asks = sys.stdin.isatty() and not (defaults or json)
    told = {q.key: given[q.key] or (ask(q) if asks else q.default) for q in QUESTIONS}
    project = make_project(Answers(**{**told, "folder": Path(told["folder"])}))
    answer(project.to_json(), project.render(), as_json=json)
    return 0


def _only_with_example(given: dict[str, str | None]) -> None:
    """Raise ConfigError for options that an example does not take, because it has its own data and settings."""
    from posttrain.errors import ConfigError

    for name, value in given.items():
        if value is not None:
            raise ConfigError(
                given=f"--{name} {value} with --example, which has its own",
                allowed="--model and a folder",
                fix=f"Leave --{name} out.",
            )


def ask(question: Question) -> str:
    """Ask on the terminal until the answer is one of the choices. Enter takes the default."""
    from posttrain.errors import ConfigError

    typer.echo(question.text)
    for name, meaning in question.choices.items():
        typer.echo(f"  {name:<15} {meaning}")
    while True:
        given = typer.prompt(">", default=question.default, prompt_suffix=" ")
        try:
            return question.check(given)
        except ConfigError as error:
            typer.echo(str(error))
