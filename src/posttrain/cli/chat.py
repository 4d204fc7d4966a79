"""`posttrain chat MODEL|RUN`"""

from __future__ import annotations

import json as jsonlib
import sys
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command("chat")(chat)


def chat(
    model: Annotated[str, typer.Argument(help="Model folder or name, or a run folder (its last checkpoint).")],
    message: Annotated[str | None, typer.Option("--message", "-m", help="Ask this one thing and stop.")] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    max_completion_length: Annotated[int, typer.Option(help="Tokens.")] = 256,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per answer.")] = False,
) -> int:
    """Talk to a model; lines come from the terminal or from standard input.

    \b
    posttrain chat runs/demo
    posttrain chat runs/demo -m "47+35="
    echo "47+35=" | posttrain chat runs/demo --json
    """
    from posttrain.evaluate.chat import ChatSession

    session = ChatSession(model, system=system, temperature=temperature, max_completion_length=max_completion_length)

    def answer(text: str) -> None:
        reply = session.ask(text)
        typer.echo(jsonlib.dumps({"message": text, "reply": reply}) if json else reply)

    if message is not None:
        answer(message)
        return 0
    interactive = sys.stdin.isatty()
    while True:
        try:
            line = input("you> " if interactive else "")
        except EOFError:
            return 0
        if line.strip():
            answer(line)
