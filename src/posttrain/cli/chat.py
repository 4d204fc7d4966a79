"""`posttrain chat MODEL|RUN`"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from posttrain.cli.output import AsJson, answer
from posttrain.importing import uncollected


def register(app: typer.Typer) -> None:
    app.command("chat", no_args_is_help=True)(chat)


def chat(
    model: Annotated[
        str, typer.Argument(metavar="MODEL|RUN", help="Model folder or name, or a run folder (its last checkpoint).")
    ],
    message: Annotated[str | None, typer.Option("--message", "-m", help="Ask this one thing and stop.")] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    max_completion_length: Annotated[int, typer.Option(min=1, help="Tokens.")] = 256,
    seed: Annotated[int, typer.Option(help="Seed of the answers, where the temperature is not 0.")] = 0,
    json: AsJson = False,
) -> int:
    """Talk to a model; lines come from the terminal or from standard input.

    A model without a chat template goes on writing where the text ends.

    \b
    Examples:
      posttrain chat runs/tiny-sort-grpo-1
      posttrain chat runs/tiny-sort-grpo-1 -m "fbdaec>"
      echo "fbdaec>" | posttrain chat runs/tiny-sort-grpo-1 --json
    """
    with uncollected():
        from posttrain.evaluate.chat import ChatSession

    session = ChatSession(
        model, system=system, temperature=temperature, max_completion_length=max_completion_length, seed=seed
    )
    turns = []
    for text in _lines() if message is None else [message]:
        reply = session.ask(text)
        turns.append({"message": text, "reply": reply})
        if not json:
            typer.echo(reply)
    if json:
        answer({"model": session.model_path, "turns": turns}, "", as_json=True)
    return 0


def _lines() -> Iterator[str]:
    """What is typed or piped in, line by line, until it ends."""
    while True:
        try:
            line = input("you> ") if sys.stdin.isatty() else input()
        except EOFError:
            return
        if line.strip():
            yield line
