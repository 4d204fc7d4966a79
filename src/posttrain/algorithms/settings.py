"""The base of an algorithm's settings: a frozen record whose errors name the allowed values and the fix."""

from __future__ import annotations

import difflib
import functools
from dataclasses import fields
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic_core import PydanticCustomError

from posttrain.errors import ConfigError


def _refuse_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("number", "a number, not true or false")
    return value


_NotBool = BeforeValidator(_refuse_bool)
"""Validator that refuses booleans: `kl_coef: true` would otherwise silently mean 1.0."""

Finite = Annotated[float, Field(allow_inf_nan=False), _NotBool]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), _NotBool]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), _NotBool]
AboveOne = Annotated[float, Field(gt=1, allow_inf_nan=False), _NotBool]
UnitInterval = Annotated[float, Field(ge=0, le=1), _NotBool]
Share = Annotated[float, Field(gt=0, le=1), _NotBool]
BelowHalf = Annotated[float, Field(ge=0, lt=0.5), _NotBool]
PositiveBelowHalf = Annotated[float, Field(gt=0, lt=0.5), _NotBool]
CountOrZero = Annotated[int, Field(ge=0), _NotBool]
Count = Annotated[int, Field(ge=1), _NotBool]


def _refuse_k1(value: Any) -> Any:
    """Refuse k1 in the loss: its expected gradient is zero (RULE 13)."""
    if value == "k1":
        raise ConfigError(
            given="kl_estimator = 'k1' in the loss: its expected gradient is zero",
            allowed="k2, k3, k1_corrected, k2_corrected, k3_corrected",
            fix="Use k3_corrected for an unbiased gradient of KL(policy || reference).",
        )
    return value


KLEstimator = Literal["k1", "k2", "k3", "k1_corrected", "k2_corrected", "k3_corrected"]
KLInReward = Literal["k1", "k2", "k3"]
KLInLoss = Annotated[Literal["k2", "k3", "k1_corrected", "k2_corrected", "k3_corrected"], BeforeValidator(_refuse_k1)]

C = TypeVar("C", bound=type)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
def settings(cls: C) -> C:
    """Make a class a frozen, validated, keyword-only record. A wrong or unknown setting raises a `ConfigError` that
    states the fix. `dataclasses.replace` and `asdict` give all attributes, which are then accepted as settings."""
    record = pydantic_dataclass(
        cls, frozen=True, kw_only=True, repr=False, config=ConfigDict(extra="forbid", use_attribute_docstrings=True)
    )
    validate = record.__init__
    setting_of = {attribute: setting for setting, attribute in attributes(record).items()}

    @functools.wraps(validate)
    def __init__(self: Any, **given: Any) -> None:
        if setting_of.keys() <= given.keys():
            changed = {name: value for name, value in given.items() if name not in setting_of}
            given = {setting: given[attribute] for attribute, setting in setting_of.items()} | changed
        try:
            validate(self, **given)
        except ValidationError as error:
            raise _explain(record, error) from None

    record.__init__ = __init__
    if "__repr__" not in vars(record):
        record.__repr__ = _as_settings
    return record  # type: ignore[return-value]


def _as_settings(self: Any) -> str:
    """Return the record as the call that makes it."""
    shown = (f"{setting}={getattr(self, attribute)!r}" for setting, attribute in attributes(self).items())
    return f"{type(self).__qualname__}({', '.join(shown)})"


OF_OTHERS = {
    "beta": "kl_coef",
    "kl_loss_coef": "kl_coef",
    "epsilon": "clip_low",
    "cliprange": "clip_low",
    "eps_clip": "clip_low",
    "clip_ratio": "clip_low",
    "clip_ratio_low": "clip_low",
    "epsilon_high": "clip_high",
    "clip_ratio_high": "clip_high",
    "delta": "dual_clip",
    "clip_ratio_c": "dual_clip",
    "cliprange_value": "value_clip",
    "vf_coef": "value_coef",
}
"""Names of TRL and verl for settings of algorithms -> ours, for errors in Python. names.yaml has those of configs; a
test compares the two."""


def attributes(record: Any) -> dict[str, str]:
    """Return setting -> attribute that holds it. The names differ only if a method already has the setting's name."""
    known = record.__pydantic_fields__
    return {known[f.name].alias or f.name: f.name for f in fields(record)}


def _explain(record: Any, error: ValidationError) -> ConfigError:
    allowed_names = list(attributes(record))
    first = error.errors()[0]
    name = ".".join(part for part in map(str, first["loc"]) if part.isidentifier()) or record.key  # without union tags
    if isinstance(cause := first.get("ctx", {}).get("error"), ConfigError):
        return cause
    if first["type"] == "unexpected_keyword_argument":
        close = difflib.get_close_matches(name, allowed_names, n=1)
        ours = OF_OTHERS.get(name, "")
        known = f"Other libraries' {name} is {ours} here: set {ours} = {first['input']!r}."
        return ConfigError(
            given=f"{record.key} has no setting {name!r}",
            allowed=", ".join(allowed_names),
            fix=known if ours in allowed_names else f"Did you mean {close[0]!r}?" if close else "Remove it.",
        )
    same = [e for e in error.errors() if e["loc"][:1] == first["loc"][:1]]  # one error per type of a union
    return ConfigError(
        given=f"{record.key}.{name} = {first['input']!r}",
        allowed=" or ".join(dict.fromkeys(e["msg"].removeprefix("Input should be ") for e in same)),
        fix=f"Change {name}, or remove it to use the default.",
    )
