"""The settings of a sweep, stored in `sweep.json` in its folder. A sweep can only continue with the settings that it
began with.

The settings of its runs are plain data. Each trial gets them in a file.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from posttrain.config import Resolved, RunConfig, load_config
from posttrain.config.text import leaves, write_value
from posttrain.errors import ConfigError
from posttrain.files import write_durably
from posttrain.lab.experiments.sweep.knobs import Knob, check_knobs, knob_of, value_at
from posttrain.lab.experiments.sweep.study import PRUNERS, Pruner
from posttrain.shown import shown

STEPS, WARMUP = "train.steps", "train.warmup_steps"
EVALUATIONS = 5
"""Held-out evaluations during a trial if the config has none. Pruning needs them."""


def given_settings(resolved: Resolved) -> dict[str, Any]:
    """Return the settings without defaults: those from the file, its preset and the command line."""
    whole = resolved.config.model_dump(mode="json")
    tree: dict[str, Any] = {}
    for path, value in leaves(whole):
        origin = resolved.origins.get(".".join(map(str, path)), "default")
        if origin != "default" and not origin.startswith("derived"):
            put(tree, path, value)
    for name, field in RunConfig.model_fields.items():
        if name not in tree and whole[name] is not None and field.default is None:
            tree[name] = {}  # a section that exists with only default values
    return tree


def put(tree: dict[str, Any], path: tuple[str | int, ...], value: Any) -> None:
    """Set the value at a path. Missing sections and list entries on the way are created.

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
    """Return the entry, or None if there is none. A list is extended to hold it."""
    if isinstance(section, dict):
        return section.get(step)
    section.extend(None for _ in range(step + 1 - len(section)))
    return section[step]


def with_values(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace settings by dotted path. If the steps change and the warm-up is not given, it keeps its share of the
    steps."""
    tree = copy.deepcopy(dict(base))
    before = tree.get("train", {})
    if STEPS in values and WARMUP not in values and before.get("steps") and before.get("warmup_steps"):
        values = {**values, WARMUP: before["warmup_steps"] * values[STEPS] // before["steps"]}
    for key, value in values.items():
        put(tree, tuple(int(step) if step.isdigit() else step for step in key.split(".")), value)
    return tree


def for_trials(config: RunConfig, given: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the settings of each trial, and a note on the changes. A trial has evaluations to prune by, a checkpoint
    at each evaluation to continue from, and no output, because each trial has its own folder."""
    every = config.evaluation.every or max(1, config.train.steps // EVALUATIONS)
    tree = with_values(given, {"evaluation.every": every, "checkpoint.every": every, "checkpoint.keep": 1})
    tree.pop("output", None)
    if config.evaluation.every:
        return tree, ""
    return tree, f"evaluation.every = {every} in each trial, because pruning needs it; the config has none"


FILE = "sweep.json"


@dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """The settings of a sweep: its base, its knobs and its length."""

    given: Mapping[str, Any]
    """The settings of the config, without defaults."""
    knobs: tuple[Knob, ...]
    trials: int = 20
    pruner: Pruner = "median"
    seeds: int = 5
    """Number of fresh seeds on which the best configuration and the default run again."""
    hold_out: Literal["prompts", "rows"] = "prompts"
    """`data.hold_out` if the config does not set it: rows in a sweep that an earlier version began."""

    def __post_init__(self) -> None:
        for name, least in (("trials", 1), ("seeds", 0)):
            if getattr(self, name) < least:
                raise ConfigError(given=f"{name} = {getattr(self, name)}", allowed=f"at least {least}")
        if self.pruner not in PRUNERS:
            raise ConfigError(given=f"pruner = {self.pruner}", allowed=", ".join(PRUNERS))

    @property
    def whole(self) -> dict[str, Any]:
        """The settings of the config, and how the sweep holds out rows."""
        return {**self.given, "data": {"hold_out": self.hold_out, **self.given["data"]}}

    @property
    def config(self) -> RunConfig:
        return load_config(self.whole).config

    @property
    def default(self) -> dict[str, Any]:
        """The values of the knobs in the config."""
        return {knob.key: value_at(self.config, knob.key) for knob in self.knobs}

    @property
    def base(self) -> dict[str, Any]:
        """The settings of each trial, before the knobs are set."""
        return for_trials(self.config, self.whole)[0]

    @property
    def default_left_out(self) -> str:
        """Why no trial has the values of the config. Empty if the first one has them."""
        outside = [
            f"{knob.key} = {write_value(value)} is not in {knob.text}"
            for knob, value in zip(self.knobs, self.default.values(), strict=True)
            if not knob.holds(value)
        ]
        return f"No trial is the unchanged config: {', '.join(outside)}." if outside else ""

    def to_json(self) -> dict[str, Any]:
        knobs = {knob.key: knob.text for knob in self.knobs}
        settings = {"trials": self.trials, "pruner": self.pruner, "seeds": self.seeds}
        return {"knobs": knobs, **settings, "base": dict(self.given), "hold_out": self.whole["data"]["hold_out"]}

    def keep(self, folder: Path) -> None:
        """Save the settings. If the folder holds another sweep, raise ConfigError; trials and seeds may differ."""
        before = read_settings(folder)
        if before is not None:
            mine, its = (json.loads(json.dumps({**s.to_json(), "base": s.whole})) for s in (self, before))
            differs = [name for name in mine if name not in ("trials", "seeds", "hold_out") and mine[name] != its[name]]
            if differs:
                raise ConfigError(
                    given=f"{folder} holds a sweep with other {' and '.join(differs)}",
                    allowed="the same config and the same knobs, or another folder",
                    fix=f"`posttrain sweep {shown(folder)}` continues that sweep; --out names another folder "
                    "for this one.",
                )
        write_durably(folder / FILE, json.dumps(self.to_json(), indent=1) + "\n")


def read_settings(folder: Path) -> SweepSettings | None:
    """Read the settings of the sweep in a folder. None if there is none. An earlier version, which did not save
    `hold_out`, held out single rows."""
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    knobs = check_knobs([knob_of(key, text) for key, text in found["knobs"].items()], found["base"])
    return SweepSettings(
        given=found["base"],
        knobs=knobs,
        trials=found["trials"],
        pruner=found["pruner"],
        seeds=found["seeds"],
        hold_out=found.get("hold_out", "rows"),
    )
