"""`posttrain explain ALGO`"""

from __future__ import annotations

from typing import Annotated

import typer

from posttrain.cli.output import AsJson, algorithm_names, answer


def register(app: typer.Typer) -> None:
    app.command("explain")(explain)


def explain(
    algorithm: Annotated[
        str | None,
        typer.Argument(
            metavar="[ALGO]", help="For example grpo; without it, all are listed.", autocompletion=algorithm_names
        ),
    ] = None,
    json: AsJson = False,
) -> int:
    """Say what an algorithm does: formula, what it needs, settings with the source of each default, paper.

    \b
    Examples:
      posttrain explain
      posttrain explain grpo
      posttrain explain "Dr. GRPO" --json
      posttrain explain correction
    """
    from posttrain.algorithms import ALGORITHMS
    from posttrain.explain import explain as explain_algorithm
    from posttrain.explain.correction import correction_page, is_correction

    if algorithm is None:
        summaries = {key: cls.card.summary for key, cls in ALGORITHMS.items()}
        width = max(map(len, summaries))
        answer(summaries, "\n".join(f"{key:<{width}}  {text}" for key, text in summaries.items()), as_json=json)
        return 0
    if is_correction(algorithm):
        page = correction_page()
        answer({"page": page}, page, as_json=json)
        return 0
    explanation = explain_algorithm(algorithm)
    answer(explanation.to_json(), explanation.render(), as_json=json)
    return 0
