"""Generator of the pages of docs/algorithms from the classes: `python -m posttrain.explain.page docs/algorithms`.

With keys after the folder, it writes only the pages of these algorithms, for example of your own:
`python -m posttrain.explain.page docs spo`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from posttrain.algorithms import ALGORITHMS
from posttrain.explain import Explanation, decoupled_ppo, explain, table
from posttrain.explain.correction import correction_page


def write_docs(folder: str | Path, keys: Sequence[str] = ()) -> list[Path]:
    """Write a page per built-in algorithm and an index into `folder`, or the pages of `keys`. Returns the files."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    explanations = [explain(key) for key in keys or ALGORITHMS.places]
    pages = {f"{e.key}.md": e.to_markdown() for e in explanations}
    if not keys:
        pages["decoupled_ppo.md"] = decoupled_ppo().to_markdown()
        pages |= {"README.md": _index(explanations), "correction.md": correction_page()}
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in pages]


def _index(explanations: list[Explanation]) -> str:
    rows = [
        (f"[`{e.key}`]({e.key}.md)", e.summary, ", ".join(f"{n.name} ({n.when})" for n in e.needs) or "nothing more")
        for e in explanations
    ]
    return (
        "<!-- generated from the classes: python -m posttrain.explain.page docs/algorithms -->\n\n"
        "# Algorithms\n\nThe same from the command line: `posttrain explain grpo`.\n\n"
        + table(("algorithm", "idea", "needs"), rows)
        + "\n\n"
        + _policy_gradients(explanations)
        + "\n\n"
        + _preference_losses(explanations)
        + "\n"
    )


def _matrix(explanations: list[Explanation], choices: Sequence[str]) -> str:
    """Return a table of the algorithms that have these choices, with the option of each."""
    those = [e for e in explanations if set(choices) <= set(e.choices)]
    return table(
        ("algorithm", *choices), [(f"[`{e.key}`]({e.key}.md)", *(e.choices[name] for name in choices)) for e in those]
    )


def _policy_gradients(explanations: list[Explanation]) -> str:
    """Return the section about the policy-gradient family: its members are points in a product of choices."""
    named = ["baseline", "normalisation", "ratio", "trust_region", "kl", "aggregation", "filter", "shaping"]
    return (
        "## One family\n\n"
        "Every policy-gradient method is one point in a product of nine choices. The table has the names of eight.\n"
        "`policy_gradient` takes these names, so a config can select any other point. The ninth choice,\n"
        "[correction](correction.md), works with all of them (off-policy weights and masks, "
        "[decoupled PPO](decoupled_ppo.md)).\nA test checks each row against the algorithm.\n\n"
        + _matrix(explanations, named)
    )


def _preference_losses(explanations: list[Explanation]) -> str:
    return (
        "## Preference losses\n\n"
        "Each loss has a score of an answer, a margin of scores, a link that turns the margin into a loss, and extra\n"
        "terms. The reference's log-probabilities are computed once, before the first step.\n\n"
        + _matrix(explanations, ["score", "reference", "margin", "link", "extra"])
    )


if __name__ == "__main__":
    for page in write_docs(sys.argv[1], sys.argv[2:]):
        print(page)
