"""The base of the configuration's sections: numbers as users write them, and models with helpful errors."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import partial
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, ValidationInfo

from posttrain.config.schema import Walker, combine, explain
from posttrain.config.text import number_in, show
from posttrain.errors import ConfigError

LARGEST, LARGEST_WHOLE = 3.4028234663852886e38, 2**63 - 1
"""The largest float32 and the largest int64, the types in which values are computed and saved."""


def as_number(value: Any) -> Any:
    """Return the number in a text, because readers of YAML 1.1 read 1e-6 as the text "1e-6", and NumPy's numbers as
    those of Python."""
    if isinstance(value, Real) and not isinstance(value, bool):
        return in_range(int(value) if isinstance(value, Integral) else float(value))
    number = number_in(value) if isinstance(value, str) else None
    return in_range(value if number is None else number)


def in_range(value: Any) -> Any:
    """Return the value. Raise ConfigError for a number that tensors cannot hold; inf and nan are refused elsewhere."""
    limit = LARGEST_WHOLE if isinstance(value, int) else LARGEST
    if isinstance(value, (int, float)) and limit < abs(value) < math.inf:
        raise ConfigError(
            given=f"{show(value)} is too large",
            allowed=f"numbers from {-limit:g} to {limit:g}",
            fix="Set it to a smaller number, or to null if null means no limit.",
        )
    return value


def as_whole(value: Any) -> Any:
    """Return an integer for a whole number such as 1e4."""
    number = as_number(value)
    return in_range(int(number)) if isinstance(number, float) and number.is_integer() else number


def as_list(value: Any) -> Any:
    """Return a list: a single name or function becomes a list of one, and `none` an empty list, as in other
    libraries."""
    if not isinstance(value, str) and not callable(value):
        return value
    return [] if value == "none" else [value]


def _path(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, PathLike) else value


def _by_place(value: Any, example: str) -> Any:
    """Refuse a function, a class or another object: a run is resumed from its folder, which holds the place of code and
    no code. `example` is a place."""
    if not callable(value) and not _holds_objects(value):
        return value
    name, place = getattr(value, "__name__", type(value).__name__), place_of(value if callable(value) else type(value))
    example = f"{example.partition(':')[0]}:{name}" if name.isidentifier() else example
    raise ConfigError(
        given=f"{name} itself, a Python {'class' if isinstance(value, type) else type(value).__name__}",
        allowed='its place, "path/to/file.py:name" or "package.module.name": a run is resumed from its folder, which '
        "can hold only the place",
        fix=f'Write "{place}".' if place else f'Put it into a file and write "{example}".',
    )


def place_of(function: Any) -> str:
    """Return `path/of/file.py:name` of a function or class; "" for one in a notebook, the script or a function."""
    code, name = getattr(function, "__code__", None), getattr(function, "__qualname__", "<")
    module = sys.modules.get(function.__module__) if isinstance(function, type) else None
    written_in = getattr(module, "__file__", None) if code is None else code.co_filename
    if "<" in name or function.__module__ == "__main__" or not written_in or not os.path.isfile(written_in):
        return ""
    file = Path(written_in)
    return f"{file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file}:{name}"


Count = Annotated[int, Field(ge=1), BeforeValidator(as_whole)]
Natural = Annotated[int, Field(ge=0), BeforeValidator(as_whole)]
Number = Annotated[float, BeforeValidator(as_number)]
NonNegative = Annotated[float, Field(ge=0), BeforeValidator(as_number)]
Positive = Annotated[float, Field(gt=0), BeforeValidator(as_number)]
Share = Annotated[float, Field(ge=0, le=1), BeforeValidator(as_number)]
BelowOne = Annotated[float, Field(ge=0, lt=1), BeforeValidator(as_number)]
ENVIRONMENT_FORMS = ("trl", "gymnasium", "verifiers")
"""Prefixes of `environment.function`, before its first colon: the library of the environment."""


def split_form(function: str) -> tuple[str, str]:
    """Return the library of an environment and its name there; ("", function) for a class with our interface.

    >>> split_form("gymnasium:FrozenLake-v1"), split_form("my_env.py:Game")
    (('gymnasium', 'FrozenLake-v1'), ('', 'my_env.py:Game'))
    """
    form, colon, name = function.partition(":")
    return (form, name) if colon and form in ENVIRONMENT_FORMS else ("", function)


Text = Annotated[str, Field(min_length=1)]
PathText = Annotated[str, Field(min_length=1), BeforeValidator(_path)]
FunctionText = Annotated[Text | None, BeforeValidator(partial(_by_place, example="rewards.py:my_reward"))]
ToolText = Annotated[Text, BeforeValidator(partial(_by_place, example="tools.py:my_tool"))]
EnvironmentText = Annotated[Text | None, BeforeValidator(partial(_by_place, example="environment.py:Environment"))]
AgentText = Annotated[Text | None, BeforeValidator(partial(_by_place, example="agent.py:my_agent"))]


def by_source(value: Any, part: str = "train") -> Any:
    """Refuse rows: a config names their source. `part` is the setting of `data` that takes it."""
    if not _holds_objects(value) and not (isinstance(value, list) and any(isinstance(one, dict) for one in value)):
        return value
    raise ConfigError(
        given=f"rows themselves, a Python {type(value).__name__}",
        allowed='their source: a file, "task:NAME" or a Hugging Face dataset',
        fix=f'Write the rows to a file, one JSON object per line, and set data.{part} = "rows.jsonl". '
        "posttrain.train and posttrain.evaluate also take the rows themselves.",
    )


def by_folder(value: Any) -> Any:
    """Refuse a model object, also as `path`: a config names the folder of a model."""
    model = value.get("path") if isinstance(value, Mapping) else value
    if not _holds_objects(model):
        return value
    raise ConfigError(
        given=f"a Python {type(model).__name__}",
        allowed="the folder or the name of a model",
        fix="Save model and tokenizer with save_pretrained, and write the folder. "
        "As the model, posttrain.train and posttrain.evaluate also take (model, tokenizer).",
    )


def _holds_objects(value: Any) -> bool:
    """Return true for a value that no file can hold, or a list with one."""
    if isinstance(value, list | tuple):
        return any(map(_holds_objects, value))
    return not isinstance(value, str | int | float | Mapping | BaseModel | PathLike | None)


def _by_source(value: Any, info: ValidationInfo) -> Any:
    return by_source(value, info.field_name or "train")


SourceText = Annotated[PathText | list[PathText], BeforeValidator(_by_source)]


class Part(BaseModel):
    """Base of the configuration models: frozen, strict about types, and with errors that state the fix."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    setting_names: ClassVar[Callable[..., list[str]]] = staticmethod(lambda algorithm=None: [])
    """Function that returns the dotted names of all settings. `config.run` sets it, because only it knows them all."""

    if not TYPE_CHECKING:  # type checkers keep the keyword arguments that pydantic declares

        def __init__(self, /, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                problems = explain(error, Walker(type(self).model_json_schema()), self.setting_names)
                raise combine(problems, type(self).__name__) from None

        __init__.__pydantic_base_init__ = (
            True  # nested models are validated by pydantic, which then knows the whole path
        )


BARE = {
    "model": "path",
    "reference": "path",
    "teacher": "path",
    "environment": "function",
    "agent": "function",
    "algorithm": "name",
    "cluster": "address",
}
"""Sections that a bare string may stand for, and the key that it gives."""


def expand(section: str, given: Any) -> Any:
    """`model: x` is `model: {path: x}`, and so with entries of rewards and check; an algorithm object is its name and
    settings."""
    if section in ("rewards", "check"):
        return [scorer(entry) for entry in given] if isinstance(given, list) else scorer(given)
    if section in BARE and isinstance(given, (str, PathLike)):
        return {BARE[section]: given}
    if section in ("environment", "agent") and _holds_objects(given):  # which the setting refuses, as in `scorer`
        return {"function": given}
    if section == "algorithm" and is_dataclass(given) and not isinstance(given, type):
        return {
            "name": getattr(given, "key", None),
            **TypeAdapter(type(given)).dump_python(given, mode="json", by_alias=True),
        }
    return given


def scorer(given: Any) -> Any:
    """`math` is `{name: math}`, and what has a dot, `rewards.py:score`, a function: as a reward is named in Python."""
    if callable(given):  # which the setting refuses, with what to write in its place
        return {"function": given}
    return {"function" if "." in given else "name": given} if isinstance(given, str) else given
