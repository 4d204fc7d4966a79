"""`posttrain check`"""

from __future__ import annotations

import typer

from posttrain.cli.output import AsJson, answer


def register(app: typer.Typer) -> None:
    app.command("check")(check)


def check(json: AsJson = False) -> int:
    """Compare this environment with the tested versions: OK, WARN or FAIL, and the line that fixes it.

    \b
    Examples:
      posttrain check
      posttrain check --json
    """
    from posttrain.environment import check_environment

    report = check_environment()
    answer(report.to_json(), report.render(), as_json=json)
    return 0 if report.usable else 1
