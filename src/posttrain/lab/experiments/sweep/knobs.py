"""Knobs: the settings that a sweep turns, each with the values that it may take.

train.learning_rate=log(1e-5, 1e-2)     even on a logarithmic scale
train.weight_decay=float(0, 0.1)        even between two numbers
sampling.group_size=int(2, 16)          whole numbers, both ends included
algorithm.kl_coef=choice(0, 0.01, 0.1)  one of these; anything that a config can hold
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from posttrain.config import RunConfig, load_config
from posttrain.config.text import read_value, write_value
from posttrain.errors import ConfigError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

Kind = Literal["log", "float", "int", "choice"]
_FORM = re.compile(r"\s*(log|float|int|choice)\s*\((.*)\)\s*", re.DOTALL)
_ALLOWED = "log(low, high), float(low, high), int(low, high) or choice(a, b, ...)"
_EXAMPLE = "For example 'train.learning_rate=log(1e-5, 1e-2)', in quotes because of the shell."

_YARDSTICK = "it decides by what trials are compared"
_OWN = "each trial has one of its own"
NOT_TURNED = {
    "rewards": f"{_YARDSTICK}: a different reward gives the score a different meaning (`posttrain compare`)",
    "reward_model": _YARDSTICK,
    "check": _YARDSTICK,
    "evaluation": _YARDSTICK,
    "data.eval": _YARDSTICK,
    "data.eval_split": _YARDSTICK,
    "data.eval_fraction": _YARDSTICK,
    "seed": "luck is not a setting to choose; the best configuration runs on fresh seeds at the end",
    "output": _OWN,
    "report": "it changes no result",
    "checkpoint": "it changes no result",
    "preset": "a preset is several settings; turn those",
}
"""Settings, with all below them, that a sweep does not turn, and why."""


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One setting and its range."""

    key: str
    kind: Kind
    low: float = 0.0
    high: float = 0.0
    choices: tuple[Any, ...] = ()
    whole: bool = False
    """Only whole numbers, on whatever scale."""

    @property
    def text(self) -> str:
        """As it was written: `log(1.0e-05, 0.01)`."""
        inside = self.choices if self.kind == "choice" else (self.low, self.high)
        return f"{self.kind}({', '.join(map(write_value, inside))})"

    def distribution(self) -> BaseDistribution:
        """As Optuna has it; choices are texts there, because they may be anything."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.kind == "choice":
            return CategoricalDistribution([write_value(choice) for choice in self.choices])
        if self.whole:
            return IntDistribution(int(self.low), int(self.high), log=self.kind == "log")
        return FloatDistribution(self.low, self.high, log=self.kind == "log")

    def suggest(self, trial: Trial) -> Any:
        """The value of this trial, drawn once."""
        if self.kind == "choice":
            texts = [write_value(choice) for choice in self.choices]
            return self.value_of(trial.suggest_categorical(self.key, texts))
        if self.whole:
            return trial.suggest_int(self.key, int(self.low), int(self.high), log=self.kind == "log")
        return trial.suggest_float(self.key, self.low, self.high, log=self.kind == "log")

    def stored(self, value: Any) -> Any:
        """A value that the knob holds, as the study keeps it: of a choice the text, because it may be anything."""
        return write_value(self.choices[self.choices.index(value)]) if self.kind == "choice" else value

    def value_of(self, stored: Any) -> Any:
        """The inverse."""
        return next((c for c in self.choices if write_value(c) == stored), stored) if self.kind == "choice" else stored

    def holds(self, value: Any) -> bool:
        """May the knob be turned to this value?"""
        if self.kind == "choice":
            return value in self.choices
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and self.low <= value <= self.high and (not self.whole or float(value).is_integer())

    def samples(self) -> list[Any]:
        """Values that have to be allowed: the choices, or the ends."""
        if self.kind == "choice":
            return list(self.choices)
        return [int(end) for end in (self.low, self.high)] if self.whole else [self.low, self.high]

    @property
    def between(self) -> float:
        """A number inside the range that is not whole."""
        middle = math.sqrt(self.low * self.high) if self.kind == "log" else (self.low + self.high) / 2
        return middle if not float(middle).is_integer() else middle + (self.high - middle) / math.pi


def is_knob(text: str) -> bool:
    """Is it a setting with a range, and not one with a value?

    >>> is_knob("train.learning_rate=log(1e-5, 1e-2)"), is_knob("train.steps=60")
    (True, False)
    """
    return _FORM.fullmatch(text.partition("=")[2]) is not None


def parse_knob(text: str) -> Knob:
    """`key=log(low, high)` and its kin. Raises ConfigError.

    >>> parse_knob("sampling.group_size=int(2, 16)").text
    'int(2, 16)'
    """
    key, equals, form = text.partition("=")
    key = key.strip().removeprefix("--")
    if not equals or not key:
        raise ConfigError(given=f"{text!r} is no knob", allowed=f"setting={_ALLOWED}", fix=_EXAMPLE)
    return knob_of(key, form)


def knob_of(key: str, form: str) -> Knob:
    """The same in two parts, as a YAML file has them."""
    match = _FORM.fullmatch(form) if isinstance(form, str) else None
    if match is None:
        raise ConfigError(given=f"{key} = {form}", allowed=_ALLOWED, fix=_EXAMPLE)
    kind, inside = match[1], read_value(f"[{match[2]}]", f"{key} = {form}")
    return _choice(key, inside) if kind == "choice" else _range(key, kind, inside)


def _choice(key: str, values: Sequence[Any]) -> Knob:
    if len({write_value(value) for value in values}) < len(values) or len(values) < 2:
        raise ConfigError(
            given=f"{key} = choice({', '.join(map(write_value, values))})",
            allowed="two different values or more",
            fix=f"For example {key}=choice(a, b).",
        )
    return Knob(key=key, kind="choice", choices=tuple(values))


def _range(key: str, kind: Any, ends: Sequence[Any]) -> Knob:
    shown = f"{key} = {kind}({', '.join(map(write_value, ends))})"
    numbers = [end for end in ends if isinstance(end, (int, float)) and not isinstance(end, bool)]
    if len(ends) != 2 or len(numbers) != 2 or not all(map(math.isfinite, numbers)):
        raise ConfigError(given=shown, allowed="two numbers: the lowest and the highest", fix=_EXAMPLE)
    low, high = numbers
    if not low < high:
        raise ConfigError(given=shown, allowed="a lowest number below the highest", fix=f"{kind}({high}, {low})?")
    if kind == "log" and low <= 0:
        raise ConfigError(
            given=shown,
            allowed="numbers above 0 on a logarithmic scale",
            fix=f"Write float({low}, {high}), or start higher.",
        )
    if kind == "int" and not all(float(end).is_integer() for end in numbers):
        raise ConfigError(given=shown, allowed="whole numbers", fix=f"Write float({low}, {high}).")
    return Knob(key=key, kind=kind, low=low, high=high, whole=kind == "int")


def check_knobs(knobs: Sequence[Knob], base: Mapping[str, Any]) -> tuple[Knob, ...]:
    """The knobs, held against the settings of a run: every end and every choice has to be one that the setting takes.

    A logarithmic range of a setting that takes whole numbers gives whole numbers. Raises ConfigError, with what was
    probably meant where there is no such setting.
    """
    keys = [knob.key for knob in knobs]
    if not knobs or len(set(keys)) < len(keys):
        twice = next((key for key in keys if keys.count(key) > 1), None)
        given = f"{twice} is given twice" if twice else "no knob to turn"
        raise ConfigError(given=given, allowed=f"one knob or more, each setting={_ALLOWED}", fix=_EXAMPLE)
    return tuple(_checked(knob, base) for knob in knobs)


def _checked(knob: Knob, base: Mapping[str, Any]) -> Knob:
    for name, reason in NOT_TURNED.items():
        if knob.key == name or knob.key.startswith(f"{name}."):
            raise ConfigError(
                given=f"{knob.key} as a knob", allowed=f"another setting: {reason}", fix=f"Leave {knob.key} out."
            )
    for value in knob.samples():
        load_config(base, {knob.key: value})
    if knob.kind in ("float", "log"):
        try:
            load_config(base, {knob.key: knob.between})
        except ConfigError:
            if knob.kind == "float" or not all(float(end).is_integer() for end in (knob.low, knob.high)):
                raise
            return replace(knob, whole=True)
    return knob


def value_at(config: RunConfig, key: str) -> Any:
    """The value of a setting by its dotted path; None where there is no such section."""
    found: Any = config.model_dump(mode="json")
    for step in key.split("."):
        if isinstance(found, list):
            found = found[int(step)] if step.isdigit() and int(step) < len(found) else None
        else:
            found = found.get(step) if isinstance(found, Mapping) else None
    return found
