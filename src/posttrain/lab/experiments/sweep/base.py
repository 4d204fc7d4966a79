"""The settings that a sweep starts from, as plain data that can be written to a file for each trial."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from typing import Any

from posttrain.config import Resolved, RunConfig
from posttrain.config.text import leaves

STEPS, WARMUP = "train.steps", "train.warmup_steps"
EVALUATIONS = 5
"""Held-out evaluations during a trial, where the config asks for none: what a trial can be pruned by."""


def given_settings(resolved: Resolved) -> dict[str, Any]:
    """What somebody gave, without the defaults: the settings of the file, of its preset and of the command line."""
    whole = resolved.config.model_dump(mode="json")
    tree: dict[str, Any] = {}
    for path, value in leaves(whole):
        origin = resolved.origins.get(".".join(map(str, path)), "default")
        if origin != "default" and not origin.startswith("derived"):
            put(tree, path, value)
    for name, field in RunConfig.model_fields.items():
        if name not in tree and whole[name] is not None and field.default is None:
            tree[name] = {}  # a section that is there, with nothing but defaults
    return tree


def put(tree: dict[str, Any], path: tuple[str | int, ...], value: Any) -> None:
    """Set the value at a path; sections and entries of lists on the way are made.

    >>> tree = {"rewards": [{"name": "math"}], "lora": None}
    >>> put(tree, ("rewards", 0, "weight"), 0.5)
    >>> put(tree, ("lora", "rank"), 4)
    >>> tree
    {'rewards': [{'name': 'math', 'weight': 0.5}], 'lora': {'rank': 4}}
    """
    here: Any = tree
    for step, following in itertools.pairwise(path):
        if _at(here, step) is None:
            here[step] = [] if isinstance(following, int) else {}
        here = here[step]
    _at(here, path[-1])
    here[path[-1]] = value


def _at(section: Any, step: Any) -> Any:
    """What stands there; None where nothing does, and of a list room is made for it."""
    if isinstance(section, dict):
        return section.get(step)
    section.extend(None for _ in range(step + 1 - len(section)))
    return section[step]


def with_values(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with others, by dotted path, in their place. Where steps are changed and the warm-up is not, it
    keeps its share of them."""
    tree = copy.deepcopy(dict(base))
    before = tree.get("train", {})
    if STEPS in values and WARMUP not in values and before.get("steps") and before.get("warmup_steps"):
        values = {**values, WARMUP: before["warmup_steps"] * values[STEPS] // before["steps"]}
    for key, value in values.items():
        put(tree, tuple(int(step) if step.isdigit() else step for step in key.split(".")), value)
    return tree


def for_trials(config: RunConfig, given: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The settings of each trial, and what was changed in them, in words: evaluations to be pruned by, a checkpoint at
    each of them to go on from, and no folder, because each has its own."""
    every = config.evaluation.every or max(1, config.train.steps // EVALUATIONS)
    tree = with_values(given, {"evaluation.every": every, "checkpoint.every": every, "checkpoint.keep": 1})
    tree.pop("output", None)
    if config.evaluation.every:
        return tree, ""
    return tree, f"evaluation.every = {every} in each trial, so that it can be pruned; the config asks for none"
