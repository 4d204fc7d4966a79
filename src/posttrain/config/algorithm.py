"""The section of the algorithm: its settings are those of the class, which validates them.

Where torch is not to be imported, `config_cards.without_torch` puts in their place what is on file about the classes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from posttrain.config.names import foreign, nearest
from posttrain.config.schema import Path, Problem, Problems, Walker, explain, missing, mistyped, unknown
from posttrain.config.text import show
from posttrain.config.values import Part, Text, expand

if TYPE_CHECKING:
    from posttrain.algorithms import Algorithm


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What the rules of a configuration ask an algorithm for, with its settings."""

    key: str
    data_kind: str
    needs: frozenset[str]
    group_size_needed: int
    learns_from_rewards: bool


class Source(Protocol):
    """Where it is known what algorithms there are, and what may be set."""

    def names(self) -> Sequence[str]: ...

    def walker(self, name: str) -> Walker:
        """The JSON schema of an algorithm's settings."""
        ...

    def complete(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Every setting of the algorithm. Raises `Problems` or a ValidationError."""
        ...

    def correction(self, name: str) -> dict[str, Any]:
        """The settings of a correction with a name; nothing for another text."""
        ...

    def declared(self, name: str, settings: Mapping[str, Any]) -> Declared: ...


class FromClasses:
    """The classes themselves, which import torch."""

    def names(self) -> Sequence[str]:
        return list(algorithms())

    def walker(self, name: str) -> Walker:
        return algorithm_type(name)[1]

    def complete(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        adapter = algorithm_type(name)[0]
        return adapter.dump_python(adapter.validate_python(dict(settings)), mode="json", by_alias=True)

    def correction(self, name: str) -> dict[str, Any]:
        from posttrain.algorithms.off_policy.correction import Correction
        from posttrain.algorithms.off_policy.names import NAMED

        named = NAMED.get(name)
        return {} if named is None else TypeAdapter(Correction).dump_python(named, mode="json")

    def declared(self, name: str, settings: Mapping[str, Any]) -> Declared:
        algorithm = algorithms()[name](**settings)
        return Declared(
            key=algorithm.key,
            data_kind=algorithm.data_kind,
            needs=frozenset[str](algorithm.needs),
            group_size_needed=algorithm.group_size_needed,
            learns_from_rewards=algorithm.learns_from_rewards,
        )


_CLASSES = FromClasses()
SOURCE: ContextVar[Source] = ContextVar("where algorithms are known", default=_CLASSES)


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

    @property
    def declared(self) -> Declared:
        """What it declares with these settings, as the class says or, where torch is not imported, its card."""
        return SOURCE.get().declared(self.name, self.settings)


def written_out(path: Path, given: Any) -> dict[str, Any]:
    """The settings of a correction that was given by its name, so that one of them can be changed by itself."""
    if path != ("algorithm", "correction") or not isinstance(given, str):
        return {}
    return SOURCE.get().correction(given)


def algorithm_names() -> Sequence[str]:
    """The keys of all algorithms."""
    return SOURCE.get().names()


def algorithms() -> Mapping[str, type[Algorithm]]:
    from posttrain.algorithms import ALGORITHMS  # imports torch, so only where an algorithm is looked at

    return ALGORITHMS


@functools.cache
def algorithm_type(name: str) -> tuple[TypeAdapter[Any], Walker]:
    adapter = TypeAdapter(algorithms()[name])
    return adapter, Walker(adapter.json_schema())


def settings_of(name: str) -> Mapping[str, Any]:
    """The JSON schema of each setting of an algorithm."""
    return SOURCE.get().walker(name).root.get("properties", {})


def complete_algorithm(given: Mapping[str, Any]) -> dict[str, Any]:
    """`{name, **settings}` with every setting of the algorithm filled in; raises `Problems`."""
    name, settings = given.get("name"), {key: value for key, value in given.items() if key != "name"}
    if not isinstance(name, str) or name not in algorithm_names():
        raise Problems([_which_algorithm(name), *_settings_of_none(settings)])
    walker, allowed = SOURCE.get().walker(name), settings_of(name)
    strange = [key for key in settings if key not in allowed]
    problems = [problem for key in strange for problem in _not_of_algorithm(key, settings.pop(key), name)]
    for key in [key for key, value in settings.items() if isinstance(value, bool)]:  # true is not the number 1
        if "true" not in walker.describe(allowed[key]):
            problems.append(mistyped(("algorithm", key), allowed[key], settings.pop(key), walker))
    complete: dict[str, Any] = {}
    try:
        complete = SOURCE.get().complete(name, settings)
    except ValidationError as error:
        problems += explain(error, walker, list, prefix=("algorithm",))
    except Problems as more:
        problems += more.problems
    if problems:
        raise Problems(problems)
    return {"name": name, **complete}


def _which_algorithm(name: Any) -> Problem:
    from posttrain.config import walker  # which imports this file

    path, names = ("algorithm", "name"), list(algorithm_names())
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
    return setting_names(name if isinstance(name, str) and name in algorithm_names() else None)


def _not_of_algorithm(key: str, value: Any, name: str) -> list[Problem]:
    from posttrain.config import setting_names

    others, own = [other for other in algorithm_names() if key in settings_of(other)], setting_names(name)
    meant = foreign(key, show(value), own)
    if not others or (meant is not None and meant.key.startswith("algorithm.") and meant.key in own):
        return unknown(("algorithm", key), value, own, own)
    has = ", ".join(settings_of(name)) or "no settings"
    given = f"algorithm.{key} = {show(value)} is not a setting of {name}"
    return [Problem(path=("algorithm", key), given=given, fix=f"It is one of {', '.join(others)}. {name} has {has}.")]
