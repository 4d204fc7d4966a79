"""The pages of docs/algorithms, written from the classes: `python -m posttrain.explain.page docs/algorithms`.

With keys behind the folder the pages of these alone, as for algorithms of your own:
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
    """Write one page per algorithm of ours and an index into `folder`, or the pages of `keys`; returns the files."""
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
    """The algorithms that are made of these choices, with what each has chosen."""
    those = [e for e in explanations if set(choices) <= set(e.choices)]
    return table(
        ("algorithm", *choices), [(f"[`{e.key}`]({e.key}.md)", *(e.choices[name] for name in choices)) for e in those]
    )


def _policy_gradients(explanations: list[Explanation]) -> str:
    """The policy-gradient family as what it is: points in a product of choices."""
    named = ["baseline", "normalisation", "ratio", "trust_region", "kl", "aggregation", "filter", "shaping"]
    return (
        "## One family\n\n"
        "Every policy-gradient method is one point in a product of nine choices. These are the names that\n"
        "`policy_gradient` takes, so that any other point can be had from a config; the ninth,\n"
        "[correction](correction.md), any of them takes (off-policy weights and masks, "
        "[decoupled PPO](decoupled_ppo.md)).\nA test holds each algorithm to its row.\n\n"
        + _matrix(explanations, named)
    )


def _preference_losses(explanations: list[Explanation]) -> str:
    return (
        "## Preference losses\n\n"
        "Each is a score of an answer, a margin made of scores, a link that makes a loss of the margin, and what is\n"
        "added to it. What the reference says is computed once, before the first step.\n\n"
        + _matrix(explanations, ["score", "reference", "margin", "link", "extra"])
    )


if __name__ == "__main__":
    for page in write_docs(sys.argv[1], sys.argv[2:]):
        print(page)
