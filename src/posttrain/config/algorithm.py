"""The section `algorithm`. The class of the algorithm defines and validates its settings."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from posttrain.algorithms import ALGORITHMS
from posttrain.algorithms.registry import ENTRY_POINTS
from posttrain.config.names import foreign, nearest, value_of_ours
from posttrain.config.schema import MOST_HINTS, Problem, Problems, Walker, explain, missing, mistyped, unknown
from posttrain.config.text import Steps, show
from posttrain.config.values import Part, Text, expand, in_range
from posttrain.errors import ConfigError

if TYPE_CHECKING:
    from posttrain.algorithms import Algorithm


class AlgorithmConfig(Part):
    """`{name: grpo, **settings}`, or the bare name. After validation every setting of the algorithm is here."""

    model_config = ConfigDict(extra="allow")

    name: Text = Field(examples=["grpo"])
    """Name of the algorithm. Its settings are written next to the name; `posttrain explain NAME` shows them."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        given = expand("algorithm", given)
        return complete_algorithm(given) if isinstance(given, Mapping) else given

    @property
    def settings(self) -> dict[str, Any]:
        """All settings, without the name."""
        return dict(self.model_extra or {})

    def build(self) -> Algorithm:
        """Return the algorithm with these settings."""
        return ALGORITHMS[self.name](**self.settings)

    @property
    def declared(self) -> Algorithm:
        """The algorithm with these settings, for reading its declarations."""
        return self.build()


@functools.cache
def _adapter(algorithm: type[Algorithm]) -> tuple[TypeAdapter[Any], Walker]:
    adapter = TypeAdapter(algorithm)
    return adapter, Walker(adapter.json_schema())


def walker_of(name: str) -> Walker:
    """Return the JSON schema of an algorithm's settings."""
    return _adapter(ALGORITHMS[name])[1]


def settings_of(name: str) -> Mapping[str, Any]:
    """Return the JSON schema of each setting of an algorithm."""
    return walker_of(name).root.get("properties", {})


def written_out(path: Steps, given: Any) -> dict[str, Any]:
    """Return the settings of a correction that was given by name, so that a single setting can be changed."""
    from posttrain.algorithms.off_policy.correction import Correction
    from posttrain.algorithms.off_policy.names import NAMED

    named = NAMED.get(given) if path == ("algorithm", "correction") and isinstance(given, str) else None
    return {} if named is None else TypeAdapter(Correction).dump_python(named, mode="json")


def complete_algorithm(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return `{name, **settings}` with every setting of the algorithm filled in. Raises `Problems`."""
    name, settings = given.get("name"), {key: value for key, value in given.items() if key != "name"}
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise Problems([_which_algorithm(name), *_settings_of_none(settings)])
    adapter, walker = _adapter(ALGORITHMS[name])
    allowed = settings_of(name)
    strange = [key for key in settings if key not in allowed]
    problems = [problem for key in strange[:MOST_HINTS] for problem in _not_of_algorithm(key, settings.pop(key), name)]
    problems += [p for key in strange[MOST_HINTS:] for p in unknown(("algorithm", key), settings.pop(key), [], hints=0)]
    for key in [key for key, value in settings.items() if isinstance(value, bool)]:  # true is not the number 1
        if "true" not in walker.describe(allowed[key]):
            problems.append(mistyped(("algorithm", key), allowed[key], settings.pop(key), walker))
    for key, value in [(key, value) for key, value in settings.items() if isinstance(value, int | float)]:
        try:
            in_range(value)
        except ConfigError as error:
            said = f"algorithm.{key}: {error.given}"
            problems.append(Problem(path=("algorithm", key), given=said, allowed=error.allowed, fix=error.fix))
            del settings[key]
    complete: dict[str, Any] = {}
    try:
        complete = adapter.dump_python(adapter.validate_python(settings), mode="json", by_alias=True)
    except ValidationError as error:
        problems += explain(error, walker, list, prefix=("algorithm",))
    if problems:
        raise Problems(problems)
    return {"name": name, **complete}


A_SLIP = 0.75
"""Similarity from which a name counts as a misspelling of another one."""


def nearest_algorithm(
    given: str, known: Mapping[str, str] | None = None, *, spelt: str | None = None
) -> tuple[str, str]:
    """Return (allowed, fix) for a name that no algorithm has. They name the most similar algorithm, not all of them.
    `known` maps other names to their keys; `spelt` is the given name in their spelling."""
    names, everything = known or {key: key for key in ALGORITHMS}, "`posttrain explain` lists them all."
    if same := value_of_ours("algorithm.name", given):
        return "", f"{same} {everything}"
    spelt = spelt or given
    close = nearest(spelt, names)
    if close is None or SequenceMatcher(None, spelt, close).ratio() < A_SLIP:
        everything += (
            f" To use your own, run posttrain.algorithms.ALGORITHMS[{given!r}] = its class first, or give its "
            f"package an entry point of the group {ENTRY_POINTS}."
        )
    if close is not None:
        return "", f"Did you mean {names[close]}? {everything}"
    return "a name such as grpo, ppo, dpo, kto, sft or reward_model", everything


def _which_algorithm(name: Any) -> Problem:
    path = ("algorithm", "name")
    if name is None:
        return missing(path, {"type": "string", "examples": ["grpo"]}, Walker({}))
    allowed, fix = nearest_algorithm(str(name))
    return Problem(
        path=path, given=f"algorithm.name = {show(name)}, and there is no such algorithm", allowed=allowed, fix=fix
    )


def _settings_of_none(settings: Mapping[str, Any]) -> list[Problem]:
    """Return the problems of settings that no algorithm has."""
    known = Part.setting_names()
    wrong = [(key, value) for key, value in settings.items() if f"algorithm.{key}" not in known]
    return [
        problem
        for number, (key, value) in enumerate(wrong)
        for problem in unknown(("algorithm", key), value, known, hints=max(0, MOST_HINTS - number))
    ]


def names_under(section: Any) -> list[str]:
    """Return the dotted paths of the settings of the section's algorithm, or of all algorithms if it names none."""
    return Part.setting_names(algorithm_named(section))


def algorithm_named(section: Any) -> str | None:
    """Return the name of the algorithm in a section as written, if such an algorithm exists."""
    name = section.get("name") if isinstance(section, Mapping) else section
    return name if isinstance(name, str) and name in ALGORITHMS else None


def _not_of_algorithm(key: str, value: Any, name: str) -> list[Problem]:
    others, own = [other for other, _ in ALGORITHMS.that_load() if key in settings_of(other)], Part.setting_names(name)
    meant = foreign(key, show(value), own)
    if not others or (meant is not None and meant.key.startswith("algorithm.") and meant.key in own):
        return unknown(("algorithm", key), value, own, own)
    has = ", ".join(settings_of(name)) or "no settings"
    given = f"algorithm.{key} = {show(value)} is not a setting of {name}"
    return [Problem(path=("algorithm", key), given=given, fix=f"It is one of {', '.join(others)}. {name} has {has}.")]
