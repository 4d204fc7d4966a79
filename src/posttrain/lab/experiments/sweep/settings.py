"""What is asked of a sweep, as `sweep.json` of its folder has it: a sweep goes on only with what it began with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.config import RunConfig, load_config
from posttrain.errors import ConfigError
from posttrain.files import write_durably
from posttrain.lab.experiments.sweep.base import for_trials
from posttrain.lab.experiments.sweep.knobs import Knob, check_knobs, knob_of, value_at
from posttrain.lab.experiments.sweep.study import PRUNERS, Pruner

FILE = "sweep.json"


@dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """A sweep: where it starts, what it turns, and how long."""

    given: Mapping[str, Any]
    """The settings of the config, without defaults."""
    knobs: tuple[Knob, ...]
    trials: int = 20
    pruner: Pruner = "median"
    seeds: int = 5
    """Fresh seeds on which the best configuration and the default one are run again."""

    def __post_init__(self) -> None:
        for name, least in (("trials", 1), ("seeds", 0)):
            if getattr(self, name) < least:
                raise ConfigError(given=f"{name} = {getattr(self, name)}", allowed=f"at least {least}")
        if self.pruner not in PRUNERS:
            raise ConfigError(given=f"pruner = {self.pruner}", allowed=", ".join(PRUNERS))

    @property
    def config(self) -> RunConfig:
        return load_config(self.given).config

    @property
    def default(self) -> dict[str, Any]:
        """What the knobs stand at in the config."""
        return {knob.key: value_at(self.config, knob.key) for knob in self.knobs}

    @property
    def base(self) -> dict[str, Any]:
        """The settings of each trial, before a knob is turned."""
        return for_trials(self.config, self.given)[0]

    @property
    def default_is_reachable(self) -> bool:
        return all(knob.holds(self.default[knob.key]) for knob in self.knobs)

    def to_json(self) -> dict[str, Any]:
        knobs = {knob.key: knob.text for knob in self.knobs}
        settings = {"trials": self.trials, "pruner": self.pruner, "seeds": self.seeds}
        return {"knobs": knobs, **settings, "base": dict(self.given)}

    def keep(self, folder: Path) -> None:
        """Write them down; where the folder holds a sweep, it has to be this one, of whatever number of trials."""
        before = read_settings(folder)
        if before is not None:
            mine, its = (json.loads(json.dumps(s.to_json())) for s in (self, before))
            differs = [name for name in mine if name not in ("trials", "seeds") and mine[name] != its[name]]
            if differs:
                raise ConfigError(
                    given=f"{folder} holds a sweep with other {' and '.join(differs)}",
                    allowed="the same config and the same knobs, or another folder",
                    fix=f"`posttrain sweep {folder}` goes on with that one; --out names another folder for this one.",
                )
        write_durably(folder / FILE, json.dumps(self.to_json(), indent=1) + "\n")


def read_settings(folder: Path) -> SweepSettings | None:
    """Of the sweep in a folder; None where there is none."""
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    knobs = check_knobs([knob_of(key, text) for key, text in found["knobs"].items()], found["base"])
    return SweepSettings(
        given=found["base"], knobs=knobs, trials=found["trials"], pruner=found["pruner"], seeds=found["seeds"]
    )
