"""The stages of a pipeline as they were given: entries of a file, rounds of them, and what the command line changes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any, NamedTuple

from posttrain.config.text import read_mapping, read_override, show
from posttrain.errors import ConfigError

STAGES = "stages"
"""The key that makes a file a pipeline."""

Entries = Sequence[dict[str, Any]]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class Draft(NamedTuple):
    """A stage as it was given, one for each round."""

    name: str
    base: str
    """The name without the number of the round."""
    place: int
    """Of its entry in the file, from 0."""
    given: dict[str, Any]
    problem: ConfigError | None = None


def holds_stages(source: Any) -> bool:
    """Is this file or mapping a pipeline? Raises ConfigError for a file that cannot be read."""
    given = read_mapping(source) if isinstance(source, (str, PathLike)) else source
    return isinstance(given, Mapping) and STAGES in given


def listed_stages(listed: Any) -> list[dict[str, Any]]:
    """The entries under `stages`; ConfigError where they are no list of settings."""
    if not isinstance(listed, list) or not listed or not all(isinstance(entry, Mapping) for entry in listed):
        raise ConfigError(
            given=f"stages = {show(listed)}",
            allowed="a list with the settings of one run in each entry",
            fix="Write stages: [{algorithm: sft, data: ..., train: ...}, {algorithm: dpo, data: ..., train: ...}].",
        )
    return [{str(key): value for key, value in entry.items()} for entry in listed]


def _base_names(listed: Entries) -> list[str]:
    """The names that are given; else that of the algorithm, with a number where it is taken."""
    names: list[str] = []
    for entry in listed:
        algorithm = entry.get("algorithm")
        algorithm = algorithm.get("name") if isinstance(algorithm, Mapping) else algorithm
        name = str(entry.get("name") or getattr(algorithm, "key", algorithm) or "stage")
        if "name" not in entry:
            wanted, number = name, 2
            while name in names:
                name, number = f"{wanted}-{number}", number + 1
        names.append(name)
    return names


def drafts_of(listed: Entries) -> Iterator[Draft]:
    """Every stage, a repeated one once for each of its rounds."""
    taken: set[str] = set()
    for place, (base, entry) in enumerate(zip(_base_names(listed), listed, strict=True)):
        given = {key: value for key, value in entry.items() if key not in ("name", "repeat")}
        repeat = entry.get("repeat")
        problem = _fault(base, repeat, given)
        rounds = [None] if repeat is None or problem else range(1, repeat + 1)
        for number in rounds:
            name = base if number is None else f"{base}-{number}"
            if name in taken:
                problem = ConfigError(
                    given=f"two stages are called {name}", allowed="a name for each", fix=f"Set name: {name}-again."
                )
            taken.add(name)
            yield Draft(name, base, place, given if number is None else _in_round(given, number), problem)


def _fault(name: str, repeat: Any, given: Mapping[str, Any]) -> ConfigError | None:
    if not _NAME.fullmatch(name):
        return ConfigError(
            given=f"name = {show(name)}",
            allowed="letters, digits, - and _, since it names a folder",
            fix=f"Set name: {re.sub(r'[^A-Za-z0-9]+', '-', name).strip('-') or 'first'}.",
        )
    if repeat is not None and (isinstance(repeat, bool) or not isinstance(repeat, int) or repeat < 1):
        return ConfigError(given=f"repeat = {show(repeat)}", allowed="an integer of at least 1", fix="Set repeat: 3.")
    for setting in ("output", "export", "stop_if_worse", STAGES):
        if setting in given:
            return ConfigError(
                given=f"{setting} is set in a stage",
                allowed=f"{setting} beside the stages, for all of them",
                fix="A stage is a run in the pipeline's folder; move it to the top level or remove it.",
            )
    return None


def _in_round(value: Any, number: int) -> Any:
    """The value with `{round}` in its texts replaced."""
    if isinstance(value, str):
        return value.replace("{round}", str(number))
    if isinstance(value, Mapping):
        return {key: _in_round(inner, number) for key, inner in value.items()}
    return [_in_round(inner, number) for inner in value] if isinstance(value, list) else value


# --- overrides -------------------------------------------------------------------------------------------------------


class Change(NamedTuple):
    key: str
    value: Any
    text: str = ""
    """As it stood on the command line, from the key on."""


@dataclass(kw_only=True)
class Changes:
    """Overrides, by what they change."""

    of_pipeline: list[Change] = field(default_factory=list)
    of_start: list[Change] = field(default_factory=list)
    """The model that the pipeline starts with; of a later stage only its own entry says so."""
    of_stages: list[tuple[str, Change]] = field(default_factory=list)
    """(name, base name or place of a stage; empty for all of them, change)."""

    @staticmethod
    def of(overrides: Sequence[str] | Mapping[str, Any], listed: Entries, own: Collection[str]) -> Changes:
        """Sorted; `own` are the settings that a pipeline has beside its stages."""
        found = Changes()
        for change in _changes(overrides):
            first, *rest = change.key.split(".")
            if first == STAGES:
                target, inner = _aimed_at(change, listed)
                found.of_stages.append((target, inner))
            elif first.replace("-", "_") in own:
                found.of_pipeline.append(change)
            elif first == "model" and (not rest or rest[0].replace("-", "_") in ("path", "gguf_file", "revision")):
                found.of_start.append(change)
            else:
                found.of_stages.append(("", change))
        return found

    def of_stage(self, draft: Draft) -> list[str] | dict[str, Any]:
        """Those of one stage, as `load_config` takes them: those of all stages first, those of its round last."""
        targets = dict.fromkeys(("", str(draft.place), draft.base, draft.name))
        mine = [change for wanted in targets for target, change in self.of_stages if target == wanted]
        if any(change.text for change in mine):
            return [change.text for change in mine]
        return {change.key: change.value for change in mine}


def _changes(overrides: Sequence[str] | Mapping[str, Any]) -> Iterator[Change]:
    if isinstance(overrides, Mapping):
        for key, value in overrides.items():
            if key == STAGES and isinstance(value, Mapping):
                yield from (Change(f"{STAGES}.{name}", inner) for name, inner in value.items())
            else:
                yield Change(str(key), value)
        return
    for text in [overrides] if isinstance(overrides, str) else overrides:
        key, value = read_override(text)
        yield Change(key, value, f"{key}={text.partition('=')[2]}")


def _aimed_at(change: Change, listed: Entries) -> tuple[str, Change]:
    """The stage that `stages.NAME.setting` names, and the change of that setting."""
    drafts = list(drafts_of(listed))
    known = [
        *dict.fromkeys(name for draft in drafts for name in (draft.base, draft.name)),
        *map(str, range(len(listed))),
    ]
    _, _, rest = change.key.partition(".")
    target, _, setting = rest.partition(".")
    if target not in known:
        close = difflib.get_close_matches(target, known, n=1)
        raise ConfigError(
            given=f"{change.key}: there is no stage {target!r}",
            allowed=f"stages.NAME.setting with one of {', '.join(dict.fromkeys(draft.name for draft in drafts))}",
            fix=f"Did you mean {close[0]}?" if close else "Or its place in the list, counted from 0.",
        )
    if setting:
        return target, Change(setting, change.value, change.text.removeprefix(f"{STAGES}.{target}."))
    if isinstance(change.value, Mapping) and not change.text and len(change.value) == 1:
        (setting, value), *_ = change.value.items()
        return target, Change(setting, value)
    raise ConfigError(
        given=f"{change.key} = {show(change.value)}",
        allowed="a setting of the stage",
        fix=f"Write {STAGES}.{target}.train.steps=5, for example.",
    )


def with_start(shared: Mapping[str, Any], change: Change) -> dict[str, Any]:
    """The shared settings with another model to start from."""
    below = shared.get("model", {})
    below = {"path": fspath(below)} if isinstance(below, (str, PathLike)) else dict(below)
    value = change.value
    new = {change.key.partition(".")[2].replace("-", "_"): value} if "." in change.key else value
    new = {"path": fspath(new)} if isinstance(new, (str, PathLike)) else dict(new)
    return {**shared, "model": below | new}
