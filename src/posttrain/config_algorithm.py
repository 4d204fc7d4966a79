"""The section of the algorithm: its settings are those of the class, which validates them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from posttrain.config_names import foreign, nearest
from posttrain.config_schema import Path, Problem, Problems, Walker, explain, missing, mistyped, unknown
from posttrain.config_text import show
from posttrain.config_values import Part, Text, expand

if TYPE_CHECKING:
    from posttrain.algorithms import Algorithm


class AlgorithmConfig(Part):
    """`{name: grpo, **settings}`, or the bare name. After validation every setting of the algorithm is here."""

    model_config = ConfigDict(extra="allow")

    name: Text = Field(examples=["grpo"])
    """Which algorithm; its settings stand beside the name. `posttrain explain NAME` shows them."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        given = expand("algorithm", given)
        return complete_algorithm(given) if isinstance(given, Mapping) else given

    @property
    def settings(self) -> dict[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})

    def build(self) -> Algorithm:
        """The algorithm itself."""
        return algorithms()[self.name](**self.settings)


def written_out(path: Path, given: Any) -> dict[str, Any]:
    """The settings of a correction that was given by its name, so that one of them can be changed by itself."""
    if path != ("algorithm", "correction") or not isinstance(given, str):
        return {}
    from posttrain.algorithms.off_policy.correction import Correction  # imports torch
    from posttrain.algorithms.off_policy.names import NAMED

    named = NAMED.get(given)
    return {} if named is None else TypeAdapter(Correction).dump_python(named, mode="json")


def algorithms() -> Mapping[str, type[Algorithm]]:
    from posttrain.algorithms import ALGORITHMS  # imports torch, so only where an algorithm is looked at

    return ALGORITHMS


@functools.cache
def algorithm_type(name: str) -> tuple[TypeAdapter[Any], Walker]:
    adapter = TypeAdapter(algorithms()[name])
    return adapter, Walker(adapter.json_schema())


def settings_of(name: str) -> Mapping[str, Any]:
    """The JSON schema of each setting of an algorithm."""
    return algorithm_type(name)[1].root.get("properties", {})


def complete_algorithm(given: Mapping[str, Any]) -> dict[str, Any]:
    """`{name, **settings}` with every setting of the algorithm filled in; raises `Problems`."""
    name, settings = given.get("name"), {key: value for key, value in given.items() if key != "name"}
    if not isinstance(name, str) or name not in algorithms():
        raise Problems([_which_algorithm(name), *_settings_of_none(settings)])
    (adapter, walker), allowed = algorithm_type(name), settings_of(name)
    strange = [key for key in settings if key not in allowed]
    problems = [problem for key in strange for problem in _not_of_algorithm(key, settings.pop(key), name)]
    for key in [key for key, value in settings.items() if isinstance(value, bool)]:  # true is not the number 1
        if "true" not in walker.describe(allowed[key]):
            problems.append(mistyped(("algorithm", key), allowed[key], settings.pop(key), walker))
    try:
        algorithm = adapter.validate_python(settings)
    except ValidationError as error:
        problems += explain(error, walker, list, prefix=("algorithm",))
    if problems:
        raise Problems(problems)
    return {"name": name, **adapter.dump_python(algorithm, mode="json", by_alias=True)}


def _which_algorithm(name: Any) -> Problem:
    from posttrain.config import walker  # which imports this file

    path, names = ("algorithm", "name"), list(algorithms())
    if name is None:
        return missing(path, {"enum": names, "examples": ["grpo"]}, walker())
    close = nearest(str(name), names)
    return Problem(
        path=path,
        given=f"algorithm.name = {show(name)}",
        allowed=", ".join(names),
        fix=f"Did you mean {close}?" if close else "posttrain explain shows what each of them does.",
    )


def _settings_of_none(settings: Mapping[str, Any]) -> list[Problem]:
    """The settings that would be wrong for every algorithm."""
    from posttrain.config import setting_names

    known = setting_names()
    wrong = [(key, value) for key, value in settings.items() if f"algorithm.{key}" not in known]
    return [problem for key, value in wrong for problem in unknown(("algorithm", key), value, known)]


def names_under(section: Any) -> list[str]:
    """The dotted paths of the settings that exist under the algorithm of the section; of all where it names none."""
    from posttrain.config import setting_names

    name = section.get("name") if isinstance(section, Mapping) else section
    return setting_names(name if isinstance(name, str) and name in algorithms() else None)


def _not_of_algorithm(key: str, value: Any, name: str) -> list[Problem]:
    from posttrain.config import setting_names

    others, own = [other for other in algorithms() if key in settings_of(other)], setting_names(name)
    meant = foreign(key, show(value), own)
    if not others or (meant is not None and meant.key.startswith("algorithm.") and meant.key in own):
        return unknown(("algorithm", key), value, own, own)
    has = ", ".join(settings_of(name)) or "no settings"
    given = f"algorithm.{key} = {show(value)} is not a setting of {name}"
    return [Problem(path=("algorithm", key), given=given, fix=f"It is one of {', '.join(others)}. {name} has {has}.")]
