"""`posttrain check`"""

from __future__ import annotations

import json as jsonlib
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command("check")(check)


def check(json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> int:
    """Compare this environment with the tested versions: OK, WARN or FAIL, and the line that fixes it.

    \b
    posttrain check
    posttrain check --json
    """
    from posttrain.environment import check_environment

    report = check_environment()
    typer.echo(jsonlib.dumps(report.to_json(), indent=2) if json else report.render())
    return 0 if report.usable else 1
