"""`posttrain explain ALGO`"""

from __future__ import annotations

import json as jsonlib
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command("explain")(explain)


def explain(
    algorithm: Annotated[str | None, typer.Argument(help="For example grpo; without it, all are listed.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Say what an algorithm does: formula, what it needs, settings with the source of each default, paper.

    \b
    posttrain explain
    posttrain explain grpo
    posttrain explain "Dr. GRPO" --json
    """
    from posttrain.algorithms import ALGORITHMS
    from posttrain.algorithms.explain import explain as explain_algorithm

    if algorithm is None:
        summaries = {key: cls.card.summary for key, cls in ALGORITHMS.items()}
        typer.echo(jsonlib.dumps(summaries) if json else "\n".join(f"{k:12} {s}" for k, s in summaries.items()))
        return 0
    explanation = explain_algorithm(algorithm)
    typer.echo(jsonlib.dumps(explanation.to_json(), indent=2) if json else explanation.render())
    return 0
