"""Generator of the reference page docs/cli.md from the verbs: `python -m posttrain.cli.page > docs/cli.md`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from posttrain.cli import app


def cli_page() -> str:
    """Return the whole page as Markdown."""
    head = Path(__file__).with_name("page.md").read_text(encoding="utf-8")
    root = typer.main.get_command(app)
    return "\n".join([head, *(_section(name, command) for name, command in _verbs(root, ""))])


def _verbs(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _verbs(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def _section(name: str, command: Any) -> str:
    described, _, examples = inspect.cleandoc(command.help).partition("\b\nExamples:\n")
    parameters = [
        _parameter(parameter) for parameter in command.get_params(typer.Context(command)) if parameter.name != "help"
    ]
    return "\n".join(
        [
            f"## posttrain {name}\n",
            described.strip() + "\n",
            f"```bash\n{inspect.cleandoc(examples)}\n```\n",
            "| argument | default | meaning |\n| --- | --- | --- |",
            *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in parameters),
            "",
        ]
    )


def _parameter(parameter: Any) -> tuple[str, str, str]:
    """Return how the user writes a parameter, its default and its help text."""
    given = parameter.default is not None and parameter.default is not False
    default = "required" if parameter.required else f"`{parameter.default}`" if given else ""
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar}`", default, parameter.help
    return f"`{', '.join(sorted(parameter.opts, key=len, reverse=True))}`", default, parameter.help


if __name__ == "__main__":
    print(cli_page(), end="")
