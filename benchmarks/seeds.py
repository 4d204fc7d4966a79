"""Shared parts of the benchmarks of recipes: command-line arguments, and results with one run for each seed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


def asked_for(arguments: Sequence[str], description: str | None, known: Sequence[str]) -> tuple[list[str], list[int]]:
    """The requested recipes and seeds. With `--page` there are no recipes: only the page is written."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--page", action="store_true", help="write the page again, from the figures on file")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.recipes) - set(known):
        parser.error(f"no recipe {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return [] if asked.page else asked.recipes or list(known), asked.seeds


def with_run(runs: Sequence[dict[str, Any]], found: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs in the order of seeds, with `found` in place of an earlier run with the same seed.

    >>> with_run([{"seed": 0}, {"seed": 2, "n": 1}], {"seed": 2, "n": 5})
    [{'seed': 0}, {'seed': 2, 'n': 5}]
    """
    by_seed = {run["seed"]: run for run in runs} | {found["seed"]: found}
    return [by_seed[seed] for seed in sorted(by_seed)]
