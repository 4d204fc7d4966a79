"""Knobs: the settings that a sweep tunes, each with its possible values.

train.learning_rate=log(1e-5, 1e-2)     uniform on a logarithmic scale
train.weight_decay=float(0, 0.1)        uniform between two numbers
sampling.group_size=int(2, 16)          whole numbers, both ends included
algorithm.kl_coef=choice(0, 0.01, 0.1)  one of these values, of any type that a config can hold
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
_EXAMPLE = "For example, write 'train.learning_rate=log(1e-5, 1e-2)', with quotes for the shell."

_YARDSTICK = "it defines how trials are compared"
_OWN = "each trial has its own"
NOT_TURNED = {
    "rewards": f"{_YARDSTICK}: a different reward gives the score a different meaning (`posttrain compare`)",
    "reward_model": _YARDSTICK,
    "check": _YARDSTICK,
    "evaluation": _YARDSTICK,
    "data.eval": _YARDSTICK,
    "data.eval_split": _YARDSTICK,
    "data.eval_fraction": _YARDSTICK,
    "data.hold_out": _YARDSTICK,
    "seed": "a seed is luck, not a setting to tune; the best configuration runs on fresh seeds at the end",
    "output": _OWN,
    "report": "it changes no result",
    "checkpoint": "it changes no result",
    "preset": "a preset stands for several settings; tune those",
}
"""Settings that a sweep does not tune, with everything below them -> the reason."""


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One setting and its range."""

    key: str
    kind: Kind
    low: float = 0.0
    high: float = 0.0
    choices: tuple[Any, ...] = ()
    whole: bool = False
    """True if the knob takes only whole numbers, on any scale."""

    @property
    def text(self) -> str:
        """The knob in its written form: `log(1.0e-05, 0.01)`."""
        inside = self.choices if self.kind == "choice" else (self.low, self.high)
        return f"{self.kind}({', '.join(map(write_value, inside))})"

    def distribution(self) -> BaseDistribution:
        """Return the knob as an Optuna distribution. Choices become text there, because they may have any type."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.kind == "choice":
            return CategoricalDistribution([write_value(choice) for choice in self.choices])
        if self.whole:
            return IntDistribution(int(self.low), int(self.high), log=self.kind == "log")
        return FloatDistribution(self.low, self.high, log=self.kind == "log")

    def suggest(self, trial: Trial) -> Any:
        """Draw the value for this trial. Further calls return the same value."""
        if self.kind == "choice":
            texts = [write_value(choice) for choice in self.choices]
            return self.value_of(trial.suggest_categorical(self.key, texts))
        if self.whole:
            return trial.suggest_int(self.key, int(self.low), int(self.high), log=self.kind == "log")
        return trial.suggest_float(self.key, self.low, self.high, log=self.kind == "log")

    def stored(self, value: Any) -> Any:
        """Convert a value of the knob to the form in the study. A choice becomes text, because it may have any type."""
        return write_value(self.choices[self.choices.index(value)]) if self.kind == "choice" else value

    def value_of(self, stored: Any) -> Any:
        """Convert a value from the study to a value of the knob: the inverse of `stored`."""
        return next((c for c in self.choices if write_value(c) == stored), stored) if self.kind == "choice" else stored

    def holds(self, value: Any) -> bool:
        """Can the knob take this value?"""
        if self.kind == "choice":
            return value in self.choices
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and self.low <= value <= self.high and (not self.whole or float(value).is_integer())

    def samples(self) -> list[Any]:
        """Return the values to validate: all choices, or both ends of the range."""
        if self.kind == "choice":
            return list(self.choices)
        return [int(end) for end in (self.low, self.high)] if self.whole else [self.low, self.high]

    @property
    def between(self) -> float:
        """A number inside the range that is not whole."""
        middle = math.sqrt(self.low * self.high) if self.kind == "log" else (self.low + self.high) / 2
        return middle if not float(middle).is_integer() else middle + (self.high - middle) / math.pi


def is_knob(text: str) -> bool:
    """Does the text give a setting a range, instead of a value?

    >>> is_knob("train.learning_rate=log(1e-5, 1e-2)"), is_knob("train.steps=60")
    (True, False)
    """
    return _FORM.fullmatch(text.partition("=")[2]) is not None


def parse_knob(text: str) -> Knob:
    """Parse `key=log(low, high)` and the other forms. Raises ConfigError.

    >>> parse_knob("sampling.group_size=int(2, 16)").text
    'int(2, 16)'
    """
    key, equals, form = text.partition("=")
    key = key.strip().removeprefix("--")
    if not equals or not key:
        raise ConfigError(given=f"{text!r} is not a knob", allowed=f"setting={_ALLOWED}", fix=_EXAMPLE)
    return knob_of(key, form)


def knob_of(key: str, form: str) -> Knob:
    """Parse a knob given as key and form, as in a YAML file."""
    match = _FORM.fullmatch(form) if isinstance(form, str) else None
    if match is None:
        raise ConfigError(given=f"{key} = {form}", allowed=_ALLOWED, fix=_EXAMPLE)
    kind, inside = match[1], read_value(f"[{match[2]}]", f"{key} = {form}")
    return _choice(key, inside) if kind == "choice" else _range(key, kind, inside)


def _choice(key: str, values: Sequence[Any]) -> Knob:
    if len({write_value(value) for value in values}) < len(values) or len(values) < 2:
        raise ConfigError(
            given=f"{key} = choice({', '.join(map(write_value, values))})",
            allowed="two or more different values",
            fix=f"For example, write {key}=choice(a, b).",
        )
    return Knob(key=key, kind="choice", choices=tuple(values))


def _range(key: str, kind: Any, ends: Sequence[Any]) -> Knob:
    shown = f"{key} = {kind}({', '.join(map(write_value, ends))})"
    numbers = [end for end in ends if isinstance(end, (int, float)) and not isinstance(end, bool)]
    if len(ends) != 2 or len(numbers) != 2 or not all(map(math.isfinite, numbers)):
        raise ConfigError(given=shown, allowed="two numbers: the lowest and the highest", fix=_EXAMPLE)
    low, high = sorted(numbers)
    if low == high:
        fix = f"Write {key}={write_value(low)}, which fixes it, or give it a range."
        raise ConfigError(given=shown, allowed="a lowest number below the highest", fix=fix)
    plain = _form("float", low, high)
    if kind == "log" and low <= 0:
        fix = f"Write {plain}." if high <= 0 else f"Start higher, as in {_form('log', high / 1000, high)}; or {plain}."
        raise ConfigError(given=shown, allowed="numbers above 0 on a logarithmic scale", fix=fix)
    if kind == "int" and not all(float(end).is_integer() for end in numbers):
        first = math.floor(low)
        whole = _form("int", first, max(first + 1, math.floor(high)))
        fix = f"Write {whole}, or {plain} if the setting takes fractions."
        raise ConfigError(given=shown, allowed="whole numbers", fix=fix)
    if numbers != [low, high]:
        fix = f"Write {_form(kind, low, high)}."
        raise ConfigError(given=shown, allowed="a lowest number below the highest", fix=fix)
    return Knob(key=key, kind=kind, low=low, high=high, whole=kind == "int")


def _form(kind: str, low: float, high: float) -> str:
    return f"{kind}({write_value(low)}, {write_value(high)})"


def check_knobs(knobs: Sequence[Knob], base: Mapping[str, Any]) -> tuple[Knob, ...]:
    """Check the knobs against the settings of a run: each setting must accept every choice and both ends of its range.

    A logarithmic range gives whole numbers if the setting requires them. Raises ConfigError, with a suggestion if there
    is no such setting.
    """
    keys = [knob.key for knob in knobs]
    if not knobs or len(set(keys)) < len(keys):
        twice = next((key for key in keys if keys.count(key) > 1), None)
        given = f"{twice} is given twice" if twice else "no knob to tune"
        raise ConfigError(given=given, allowed=f"one or more knobs, each setting={_ALLOWED}", fix=_EXAMPLE)
    return tuple(_checked(knob, base) for knob in knobs)


def _checked(knob: Knob, base: Mapping[str, Any]) -> Knob:
    for name, reason in NOT_TURNED.items():
        if knob.key == name or knob.key.startswith(f"{name}."):
            raise ConfigError(
                given=f"{knob.key} as a knob", allowed=f"another setting: {reason}", fix=f"Remove {knob.key}."
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
    """Return the value of a setting by its dotted path. None if there is no such section."""
    found: Any = config.model_dump(mode="json")
    for step in key.split("."):
        if isinstance(found, list):
            found = found[int(step)] if step.isdigit() and int(step) < len(found) else None
        else:
            found = found.get(step) if isinstance(found, Mapping) else None
    return found
