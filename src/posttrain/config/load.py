"""Combines files, overrides and Python values into a configuration with the origin of each value, or lists all errors.

    load_config("run.yaml", ["train.learning_rate=1e-6"])  ->  Resolved(config, origins)

Precedence: default < preset < file < command line.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from posttrain.config import rules
from posttrain.config.algorithm import AlgorithmConfig, complete_algorithm, names_under, written_out
from posttrain.config.names import nearest
from posttrain.config.presets import PRESETS
from posttrain.config.run import REWARD_MODEL, RunConfig, setting_names, walker
from posttrain.config.schema import MOST_HINTS, Problem, Walker, combine, explain
from posttrain.config.text import (
    REDACTED,
    SAVED,
    Steps,
    dotted,
    leaves,
    line_of,
    read_mapping,
    read_override,
    redact,
    show,
    usable,
    write_tree,
)
from posttrain.config.values import expand
from posttrain.errors import ConfigError, DataError, PosttrainError

if TYPE_CHECKING:
    from posttrain.algorithms import Algorithm


DERIVED: Mapping[Steps, Callable[[RunConfig], tuple[Any, str]]] = {
    ("algorithm", "max_completion_length"): lambda config: config.most_drawn
}
"""Settings that are derived from others if null -> the function that returns the value and the names of its sources."""
COMMAND_LINE, CALLER = "command line", "caller"

Check = Callable[[RunConfig], object]
"""Function that raises a PosttrainError to refuse a configuration."""


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A configuration with the origin of every value."""

    config: RunConfig
    origins: Mapping[str, str]
    """Dotted path -> "default", "preset:NAME", "file:PATH", "command line", "caller" (Python) or "derived: PATH"."""
    places: Places | None = None
    """Exact places of the values, for error messages."""


@dataclass(kw_only=True)
class Layers:
    """The values given so far. Later values replace earlier ones."""

    expand: Callable[[str, Any], Any] = expand
    """(section, value) -> the value, expanded if it is shorthand for a section."""
    tree: dict[str, Any] = field(default_factory=dict)
    origins: dict[Steps, str] = field(default_factory=dict)
    """Path of each leaf of `tree` -> its origin."""

    def put(self, path: Steps, value: Any, origin: str) -> None:
        """Set the value at a path. A mapping is merged key by key; any other value replaces the old one."""
        if len(path) == 1 or (len(path) == 2 and isinstance(path[1], int)):  # a section, or an entry of a section list
            value = self.expand(str(path[0]), value)
        below = self.at(path)
        merges = isinstance(value, Mapping) and not isinstance(below, list) and (value or isinstance(below, dict))
        if not merges:
            self._replace(path, _copied(value), origin)
            return
        for key, inner in value.items():
            self.put((*path, key), inner, origin)

    def at(self, path: Steps) -> Any:
        """Return the value at a path; None if there is none."""
        node: Any = self.tree
        for step in path:
            if isinstance(node, dict):
                node = node.get(step)
            else:
                node = node[step] if isinstance(node, list) and isinstance(step, int) and step < len(node) else None
        return node

    def _replace(self, path: Steps, value: Any, origin: str) -> None:
        node: Any = self.tree
        for depth, step in enumerate(path[:-1], 1):
            if not isinstance(self.at(path[:depth]), (dict, list)):  # null or a scalar becomes a section here
                stands_for, giver = written_out(path[:depth], self.at(path[:depth])), self.source(path[:depth])
                self._forget(path[:depth])
                node[step] = _copied(stands_for)
                self.origins |= {leaf: giver for leaf, _ in leaves(stands_for, path[:depth]) if stands_for}
            node = node[step]
        is_new = isinstance(node, dict) and path[-1] not in node
        node[path[-1]] = value
        if not is_new:
            self._forget(path)
        whole_list = isinstance(node, list) and not isinstance(value, dict)  # a list of scalars is one leaf
        self.origins |= {leaf: origin for leaf, _ in leaves(value, path[:-1] if whole_list else path)}

    def _forget(self, path: Steps) -> None:
        self.origins = {p: origin for p, origin in self.origins.items() if p[: len(path)] != path}

    def locate(self, key: str, walker: Walker) -> Steps:
        """Return the path for the dotted key of an override. Kebab-case is allowed; list entries go by position."""
        path: Steps = ()
        node = walker.root
        for name in key.split("."):
            entries = self.at(path)
            if isinstance(entries, list):
                path = (*path, _position(name, entries, key))
            else:
                path = (*path, name if walker.is_free(node) else name.replace("-", "_"))
            node = walker.child(node, path[-1]) or {}
        return path

    def source(self, path: Steps) -> str:
        """Return the origin of the value at a path, or of a value in it, or of its section; "" for a default."""
        inside = next((origin for p, origin in self.origins.items() if p[: len(path)] == path), "")
        return inside or (self.source(path[:-1]) if len(path) > 1 else "")


def _position(name: str, entries: list[Any], key: str) -> int:
    if name.isdecimal() and int(name) < len(entries):
        return int(name)
    raise ConfigError(
        given=f"{key}: there is no entry {name!r} in this list",
        allowed=f"0 to {len(entries) - 1}" if entries else "an entry of a list that is not empty",
        fix="Entries are counted from 0. To add an entry, give the whole list: rewards=[{name: math}].",
    )


@dataclass(frozen=True, kw_only=True)
class Places:
    """The exact places of the settings of a configuration, for error messages."""

    where: str
    """Path of the file, or a description of a mapping."""
    layers: Layers
    at: Steps = ()
    """Path of the settings in the file, such as the path of a stage in a pipeline file."""
    arguments: dict[str, Steps] = field(default_factory=dict)
    """Command-line argument -> path of the setting that it gave."""

    def of(self, path: Steps) -> str:
        """Return `run.yaml, line 7` or `argument train.steps=x`; empty for a default or a value from Python."""
        origin = self.layers.source(path)
        if origin == COMMAND_LINE:
            given = [text for text, key in self.arguments.items() if key[: len(path)] == path[: len(key)]]
            return f"argument {given[-1]}" if given else origin
        if not origin.startswith("file:"):
            return origin if origin.startswith("preset:") else ""
        file = origin.removeprefix("file:")
        line = line_of(file, self.at, path)
        return f"{file}, line {line}" if line else file

    def named_in(self, error: PosttrainError) -> str:
        """Return the place of the first given setting that an error mentions."""
        for name in re.findall(r"[a-z_]+(?:\.[a-z0-9_]+)*", error.given):
            path = tuple(int(step) if step.isdecimal() else step for step in name.split("."))
            near = path if self.layers.at(path) is not None else path[:-1]  # rewards.name concerns each entry
            if near and self.layers.at(near) is not None and (place := self.of(near)):
                return place
        return ""


def load_config(
    source: str | PathLike[str] | Mapping[str, Any] | RunConfig,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    shared: Mapping[str, Any] | None = None,
    origin: str = "",
    at: Steps = (),
    checks: Iterable[Check] = (),
) -> Resolved:
    """Return the configuration of a run, from a YAML or TOML file (or a mapping, or a RunConfig) and overrides.

    Overrides are `a.b=value` with the value read as YAML, or a mapping with nested or dotted keys. Mappings are merged
    key by key; lists are replaced as a whole or changed by position (`rewards.0.weight=0.5`). `shared` has settings
    that the source overrides, as in the stages of a pipeline. `origin` names the file of a mapping, and `at` the path
    in that file. If any setting is wrong, raises one ConfigError with all problems, including the rules and `checks`
    that the valid settings break. If none is wrong, it does not run the rules: call `check` for that.
    """
    given, found_in = _read(source)
    layers, told = Layers(), _Told()
    places = Places(where=_named(origin or found_in), layers=layers, at=at)
    changes = list(_read_overrides(overrides, told))
    asked_for = [value for key, value, _ in changes if key == "preset"]
    below = _plain(shared or {})
    in_file = given.pop("preset", below.pop("preset", None))
    preset = _known_preset(asked_for[-1] if asked_for else in_file, told)
    layers.put((), PRESETS.get(preset, {}), f"preset:{preset}")
    layers.put((), below, origin or found_in)
    layers.put((), given, origin or found_in)
    if asked_for:
        _refuse_another_algorithm(preset, layers)
        _refuse_covered(preset, layers)
    for key, value, argument in changes:
        with told.gathering(argument):
            path = layers.locate(key, walker())
            places.arguments[argument] = path
            if key != "preset":
                layers.put(path, value, COMMAND_LINE if argument else CALLER)
    _refuse_another_algorithm(preset, layers)
    config = _validated(layers, places, told, checks)
    origins = {dotted(path): layers.origins.get(path, "default") for path, _ in leaves(config.model_dump(mode="json"))}
    return Resolved(config=config, origins=origins, places=places)


def check(config: RunConfig | Resolved, *more: Check) -> None:
    """Check the rules that span sections, and `more` checks that need other packages. Raise ConfigError with every
    rule that is broken, before any model is loaded."""
    places = config.places if isinstance(config, Resolved) else None
    errors = _broken(config.config if isinstance(config, Resolved) else config, more)
    if len(errors) == 1 and places is None:
        raise errors[0]
    if errors:
        problems = [Problem.of(error, place=places.named_in(error) if places else "") for error in errors]
        raise combine(problems, places.where if places else "the configuration")


def check_over(config: RunConfig, size: int) -> None:
    """Raise ConfigError for what `size` ranks cannot do, even if `train.devices` leaves the number open."""
    check(config.model_copy(update={"train": config.train.model_copy(update={"devices": size})}))


def check_recorded(config: RunConfig) -> None:
    """Check the settings of a replay. Its tokens are on file with their versions, so the rules about sampling ahead do
    not apply. Raise ConfigError for the first rule that is broken."""
    errors = _broken(config, (), but=rules.OF_SAMPLING_AHEAD)
    if errors:
        raise errors[0]


def _broken(config: RunConfig, checks: Iterable[Check], but: Collection[Any] = ()) -> list[PosttrainError]:
    algorithm = config.algorithm.build()
    kept = (rule for rule in RULES if rule not in but)
    errors: list[PosttrainError] = [error for rule in kept if (error := rule(config, algorithm))]
    for one in checks:
        try:
            one(config)
        except (ConfigError, DataError) as error:
            errors.append(error)
    return errors


# --- reading ---------------------------------------------------------------------------------------------------------


@dataclass
class _Told:
    """The problems found so far."""

    problems: list[Problem] = field(default_factory=list)

    @contextmanager
    def gathering(self, argument: str = "") -> Iterator[None]:
        """Collect a ConfigError raised in the block, to report it with the others."""
        try:
            yield
        except ConfigError as error:
            self.problems.append(Problem.of(error, place=f"argument {argument}" if argument else ""))


def _named(origin: str) -> str:
    return "the configuration" if origin == CALLER else origin.removeprefix("file:")


def _read(source: str | PathLike[str] | Mapping[str, Any] | RunConfig) -> tuple[dict[str, Any], str]:
    if isinstance(source, (str, PathLike)):
        return read_mapping(source), f"file:{os.fspath(source)}"
    if isinstance(source, (Mapping, RunConfig)):
        return _plain(usable(source, "the configuration")), CALLER
    raise ConfigError(
        given=f"a configuration of type {type(source).__name__}",
        allowed="the path of a YAML or TOML file, a mapping or a RunConfig",
        fix='For example posttrain.train("run.yaml").',
    )


def _read_overrides(overrides: Sequence[str] | Mapping[str, Any], told: _Told) -> Iterator[tuple[str, Any, str]]:
    """Yield (dotted key, value, command-line argument) in the given order."""
    if isinstance(overrides, Mapping):
        yield from ((str(key), _plain(usable(value, str(key))), "") for key, value in overrides.items())
        return
    for text in [overrides] if isinstance(overrides, str) else overrides:
        with told.gathering():
            yield *read_override(text), text


def _plain(value: Any) -> Any:
    """Return Python values as a file would hold them. A pydantic model gives only the fields that were set."""
    if isinstance(value, AlgorithmConfig):
        defaults = complete_algorithm({"name": value.name})
        return {k: v for k, v in value.model_dump().items() if k == "name" or v != defaults[k]}
    if isinstance(value, BaseModel):
        return {
            name: _plain(getattr(value, name)) for name in type(value).model_fields if name in value.model_fields_set
        }
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return os.fspath(value) if isinstance(value, PathLike) else value


def _copied(value: Any) -> Any:
    """Return a copy of sections and lists. What else they hold is shared: a model that is refused may be large."""
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value


def _known_preset(name: Any, told: _Told) -> str:
    """Return the name of the preset; empty if none is given or it does not exist."""
    if name is None or (isinstance(name, str) and name in PRESETS):
        return name or ""
    close = nearest(str(name), PRESETS)
    fix = f"Did you mean {close}?" if close else "Leave it out, or name one of these."
    told.problems.append(Problem(path=("preset",), given=f"preset = {show(name)}", allowed=", ".join(PRESETS), fix=fix))
    return ""


def _refuse_covered(preset: str, layers: Layers) -> None:
    """Raise ConfigError if the file overrides values of a preset that was given on the command line."""
    values = leaves(PRESETS[preset]) if preset else ()
    covered = [(path, value) for path, value in values if layers.at(path) != value]
    if covered:
        raise ConfigError(
            given=f"preset={preset}, but the file takes precedence over it and gives "
            f"{', '.join((dotted(p) for p, _ in covered))}",
            allowed="a preset whose values the file leaves open",
            fix="Give the values themselves: " + " ".join(f"{dotted(path)}={show(value)}" for path, value in covered),
        )


def _refuse_another_algorithm(preset: str, layers: Layers) -> None:
    """Raise ConfigError if the preset's algorithm settings would apply to a different algorithm."""
    path = ("algorithm", "name")
    own, named = PRESETS.get(preset, {}).get("algorithm", {}).get("name"), layers.at(path)
    if own is not None and named != own:
        raise ConfigError(
            given=f"preset {preset} stands for algorithm {own} with settings of its own, but "
            f"{_named(layers.source(path))} names algorithm {show(named)}",
            allowed=f"the preset, or algorithm.name = {show(named)}",
            fix="Remove one of the two. With the preset you can still change single settings: algorithm.kl_coef=0.01.",
        )


def _validated(layers: Layers, places: Places, told: _Told, checks: Iterable[Check]) -> RunConfig:
    """Return the validated configuration with derived settings. Raises ConfigError with all of its problems."""
    problems = told.problems + [_was_redacted(path) for path, value in leaves(layers.tree) if REDACTED in str(value)]
    try:
        config = RunConfig.model_validate(layers.tree)
        for target, follows in DERIVED.items():
            if layers.at(target[:1]) is not None and _get(config, target, default="") is None:
                value, by = follows(config)
                layers.put(target, value, f"derived: {by}")
                config = RunConfig.model_validate(layers.tree)
        if not problems:
            return config
    except ValidationError as error:
        problems += explain(error, walker(), setting_names, own=lambda: names_under(layers.tree.get("algorithm")))
    placed = [replace(p, place=p.place or (places.of(p.path) if p.path else "")) for p in problems[:MOST_HINTS]]
    placed += problems[MOST_HINTS:]  # not shown anyway
    placed += [Problem.of(e, place=places.named_in(e)) for e in _broken_beside(problems, layers.tree, checks)]
    raise combine(placed, places.where) from None


def _get(config: RunConfig, path: Steps, default: Any = None) -> Any:
    return functools.reduce(lambda part, name: getattr(part, str(name), default), path, config)


def _was_redacted(path: Steps) -> Problem:
    name = dotted(path)
    return Problem(
        path=path,
        given=f"{name} held a secret, which was not saved",
        allowed="the secret value",
        fix=f"Let the function read it from an environment variable, or give it again: {name}=...",
    )


def _broken_beside(problems: Sequence[Problem], tree: Any, checks: Iterable[Check]) -> list[PosttrainError]:
    """Return the rules that a configuration breaks in addition to its wrong settings, except rules that mention these.

    The rules are checked without the wrong settings. Missing settings take the values of the documentation's examples.
    """
    if any(problem.path[:1] == ("algorithm",) and problem.path[1:] in ((), ("name",)) for problem in problems):
        return []
    tree, doubtful = _copied(tree), set()
    for problem in problems:
        entry = next((place for place, step in enumerate(problem.path) if isinstance(step, int)), len(problem.path))
        doubtful |= {dotted(problem.path[:entry]), problem.meant} - {""}
        *above, last = problem.path[:entry] or ("",)
        section = functools.reduce(lambda node, step: node.get(step) if isinstance(node, dict) else None, above, tree)
        if isinstance(section, dict):
            section.pop(last, None)
            if problem.missing or (last in RunConfig.model_fields and RunConfig.model_fields[last].is_required()):
                section[last] = problem.example
    try:
        config = RunConfig.model_validate(tree)
    except ValidationError:
        return []
    spoken_of = re.compile("|".join(rf"(?<![\w.]){re.escape(name)}(?!\w)" for name in doubtful) or r"(?!)")
    return [error for error in _broken(config, checks) if not spoken_of.search(str(error))]


# --- a run before the run --------------------------------------------------------------------------------------------


def reward_model_config(config: RunConfig, folder: Path) -> Resolved:
    """Return the configuration of the run that trains the reward model for the run in `folder`.

    Its defaults are the model and seed of that run, and the algorithm reward_model. Raises ConfigError with the name
    of the section if the section is wrong.
    """
    given = config.reward_model or {}
    if placed := [name for name in ("output", REWARD_MODEL) if name in given]:
        raise ConfigError(
            given=f"{REWARD_MODEL}.{placed[0]} is set",
            allowed=f"a run in the folder {REWARD_MODEL} of this one, without a stage of its own",
            fix="Remove it.",
        )
    outer = config.model_dump(mode="json", exclude_unset=True)
    defaults = {"model": outer["model"], "seed": config.seed, "algorithm": REWARD_MODEL}
    model = given.get("model", {})
    if isinstance(model, Mapping):
        model = {**outer["model"], **model}
    try:
        resolved = load_config({**defaults, **given, "model": model, "output": str(folder / REWARD_MODEL)})
        check(resolved.config)
    except ConfigError as error:
        raise ConfigError(given=f"{REWARD_MODEL}: {error.given}", allowed=error.allowed, fix=error.fix) from error
    algorithm = resolved.config.algorithm
    if "scores" not in algorithm.build().needs:
        raise ConfigError(
            given=f"{REWARD_MODEL}.algorithm.name = {algorithm.name}, which trains no score",
            allowed=REWARD_MODEL,
            fix=f"Remove {REWARD_MODEL}.algorithm.name.",
        )
    return resolved


def _reward_model_can_be_trained(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """The section reward_model is a valid configuration of a separate run."""
    if config.reward_model is None:
        return None
    try:
        reward_model_config(config, Path())
    except ConfigError as error:
        return error
    return None


RULES = (*rules.RULES, _reward_model_can_be_trained)
"""All rules that span several sections. The docstring of a rule is its documentation."""


# --- as it is saved --------------------------------------------------------------------------------------------------


def to_yaml(resolved: Resolved) -> str:
    """Return the complete configuration as YAML, with the origin of each value as a comment. It loads back the same.

    Secrets in free-form settings are saved as <redacted>. Loading such a file is an error that names them.
    """
    tree = saved_tree(resolved.config)
    return f"{SAVED} this run, each with where its value came from.\n" + write_tree(tree, resolved.origins)


def saved_tree(config: RunConfig) -> dict[str, Any]:
    """Return all settings as plain data for saving, with secrets in free-form settings as <redacted>."""
    tree = config.model_dump(mode="json")
    for reward in [*tree["rewards"], *tree["check"]]:
        reward["settings"] = redact(reward["settings"])
        if reward["judge"] is not None:
            reward["judge"]["request"] = redact(reward["judge"]["request"])
    tree["model"]["chat_template_kwargs"] = redact(tree["model"]["chat_template_kwargs"])
    return tree
