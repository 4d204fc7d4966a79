"""`posttrain init [FOLDER]`"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from posttrain.cli.output import AsJson, answer

if TYPE_CHECKING:
    from posttrain.lab.init import Question


def register(app: typer.Typer) -> None:
    app.command("init")(init)


def init(
    folder: Annotated[
        Path | None, typer.Argument(metavar="FOLDER", help="Where to write it.", show_default="my-run")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="answers, function, pairs, thumbs or demonstrations.", show_default="answers")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A folder, a Hugging Face name, or tiny.", show_default="tiny")
    ] = None,
    where: Annotated[str | None, typer.Option(help="auto, cpu or gpu.", show_default="auto")] = None,
    goal: Annotated[
        str | None, typer.Option(help="balance, quality, stability, speed or memory.", show_default="balance")
    ] = None,
    defaults: Annotated[bool, typer.Option("--defaults", "-y", help="Ask nothing; take the defaults.")] = False,
    json: AsJson = False,
) -> int:
    """A project to begin with: config, reward, sample data and a README; five questions on a terminal, or flags.

    It runs as it is. What is given as a flag is not asked; without a terminal nothing is. Nothing is overwritten.

    \b
    Examples:
      posttrain init
      posttrain init my-run --data pairs --model Qwen/Qwen3-0.6B --where gpu
      posttrain init my-run --data function -y --json
    """
    from posttrain.lab.init import QUESTIONS, Answers, make_project

    given = {"data": data, "model": model, "where": where, "goal": goal, "folder": folder and str(folder)}
    for question in QUESTIONS:
        if given[question.key] is not None:
            question.check(str(given[question.key]))
    asks = sys.stdin.isatty() and not (defaults or json)
    told = {q.key: given[q.key] or (ask(q) if asks else q.default) for q in QUESTIONS}
    project = make_project(Answers(**{**told, "folder": Path(told["folder"])}))
    answer(project.to_json(), project.render(), as_json=json)
    return 0


def ask(question: Question) -> str:
    """On a terminal, until the answer is one of the choices; Enter takes the default."""
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
