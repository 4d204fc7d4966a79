"""Configs with Python objects in them: rows, functions and models, as `evaluate` takes them.

A function or class that a module defines is written into config.yaml by its file and name. Rows, and a model with its
tokenizer, are written into the run's folder, and the config names that file or folder. A reward that no file defines (a
lambda, an object, a function of a notebook or of the script itself) runs in this process. config.yaml then holds a
placeholder name, and you pass the function again when you resume the run. Tools, environments and agents run in
processes of their own, so they need a file.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from posttrain.config import DataConfig, Resolved, load_config
from posttrain.config.values import Part, place_of
from posttrain.data.given import as_file, given_rows, is_source
from posttrain.errors import ConfigError, DataError
from posttrain.files import write_durably
from posttrain.models.given import model_and_tokenizer
from posttrain.models.load import LoadedModel
from posttrain.models.save import save_model
from posttrain.rewards import Reward
from posttrain.rewards.load import GIVEN, IN_MEMORY

PARTS = ("train", "eval", "auxiliary")
SPLITS = ("test", "validation", "valid", "val", "dev")
"""Names that datasets have for rows to evaluate on."""
START = "start"
"""The folder inside a run that holds the model passed to `train`."""
Content = bytes | Callable[[Path], object]
"""The content of a file, or a function that writes the folder of a model."""


class Given(NamedTuple):
    """A configuration without objects, and the files to write into the run's folder."""

    resolved: Resolved
    files: Mapping[str, Content]


def resolve(config: Any, overrides: Mapping[str, Any], folder_of: Callable[[Resolved], Path]) -> Given:
    """`load_config` for settings that may hold Python objects; `folder_of` gives the run's folder."""
    files: dict[str, tuple[str, Content]] = {}
    plain = _without_objects(config, files) if isinstance(config, Mapping) else config
    changes = _without_objects(overrides, files)
    resolved = load_config(plain, changes)
    if not files:
        return Given(resolved, {})
    folder = folder_of(resolved)
    placed = {setting: str(folder / name) for setting, (name, _) in files.items()}
    return Given(load_config(plain, {**changes, **placed, "output": str(folder)}), dict(files.values()))


def put_files(files: Mapping[str, Content], folder: Path) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        if isinstance(content, bytes):
            write_durably(folder / name, content)
        else:
            content(folder / name)


def give_functions(functions: Mapping[str, Any] | Sequence[Any] | None) -> None:
    """Pass a resumed run its functions again, by their own names or by the names that the run's config has for them."""
    if isinstance(functions, Mapping):
        named = dict(functions)
    else:
        named = {getattr(one, "__name__", type(one).__name__): one for one in functions or ()}
    if strange := [name for name, one in named.items() if not callable(one)]:
        raise ConfigError(given=f"functions[{strange[0]!r}] is not callable", allowed="functions, or a mapping of them")
    GIVEN.update({IN_MEMORY + name: one for name, one in named.items()})


def _without_objects(settings: Mapping[str, Any], files: dict[str, tuple[str, Content]]) -> dict[str, Any]:
    plain = {key: _plain(str(key), value, files) for key, value in settings.items()}
    if "data" in plain and not isinstance(plain["data"], Mapping | Part | type(None)):
        plain["data"] = {"train": _source("train", plain["data"], files)}
    return plain


def _plain(key: str, value: Any, files: dict[str, tuple[str, Content]]) -> Any:
    if key in ("model", "model.path"):
        return _model(value, files)
    section, _, setting = key.partition(".")
    if key == "data" and isinstance(value, Mapping):
        _require_parts(value)
        return {name: _source(name, one, files) if name in PARTS else one for name, one in value.items()}
    if section == "data" and setting in PARTS:
        return _source(setting, value, files)
    if key in ("rewards", "check"):
        return [_scorer(one, place) for place, one in enumerate(_listed(value))] if value else value
    if key == "tools":
        by_name = not value or isinstance(value, str)
        return value if by_name else [_by_file(tool) for tool in _listed(value)]
    if section in ("environment", "agent"):
        holds = isinstance(value, Mapping) and "function" in value
        return {**value, "function": _by_file(value["function"])} if holds else _by_file(value)
    if section in ("rewards", "check") and callable(value):
        return _place(value, 0)
    return value


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def _require_parts(data: Mapping[str, Any]) -> None:
    """Raise DataError for rows under a name of another library, such as the split `test` of a dataset."""
    others = [name for name, rows in data.items() if name not in DataConfig.model_fields and _is_split(name, rows)]
    if not others:
        return
    held = next((name for name in SPLITS if name in others), others[-1])
    trained = next((name for name in ("train", *others) if name in data and name != held), "train")
    raise DataError(
        given=f"data holds the splits {', '.join(map(str, data))}",
        allowed=f"rows to train on, or a mapping of {', '.join(PARTS)} to rows",
        fix=f'Name what each split is for: data={{"train": data["{trained}"], "eval": data["{held}"]}}. '
        'If you leave "eval" out, the run holds out some of the training rows.',
    )


def _is_split(name: str, rows: Any) -> bool:
    """Return true for a dataset, or for rows under the usual name of a split."""
    return hasattr(rows, "column_names") or (name in SPLITS and not is_source(rows) and not isinstance(rows, Mapping))


def _model(value: Any, files: dict[str, tuple[str, Content]]) -> Any:
    """A named model unchanged; for `(model, tokenizer)`, also as `path`, a placeholder until its folder is known."""
    if isinstance(value, Mapping) and "path" in value:
        return {**value, "path": _model(value["path"], files)}
    if isinstance(value, str | PathLike | Mapping | Part | None):
        return value
    model, tokenizer = model_and_tokenizer(value)
    loaded = LoadedModel.of(model, tokenizer)

    def write(folder: Path) -> None:
        save_model(model, tokenizer, folder, eos_ids=loaded.eos_ids, pad_id=loaded.pad_id)

    files["model.path"] = (START, write)
    return Path(str(model.name_or_path) or "model").name.replace(":", "-")


def _source(part: str, data: Any, files: dict[str, tuple[str, Content]]) -> Any:
    """A source unchanged; for rows, a placeholder until the path of their file is known."""
    if is_source(data):
        return data
    files[f"data.{part}"] = as_file(given_rows(data), part)
    return files[f"data.{part}"][0]


def _scorer(entry: Any, place: int) -> Any:
    if isinstance(entry, Reward):
        defaults = Reward()
        given = {one.name: getattr(entry, one.name) for one in fields(entry)}
        entry = {name: value for name, value in given.items() if value != getattr(defaults, name)}
    elif callable(entry) and not isinstance(entry, Part):
        entry = {"function": entry}
    if isinstance(entry, Mapping) and callable(entry.get("function")):
        return {**entry, "function": _place(entry["function"], place)}
    return entry


def _by_file(function: Any) -> Any:
    """The place of a function or class that a file defines; anything else unchanged, for the config to judge."""
    is_placed = callable(function) and not isinstance(function, Part) and _found_there(function)
    return (is_placed and place_of(function)) or function


def _place(function: Callable[..., Any], place: int) -> str:
    """The place from which a worker or a resumed run imports the function; its placeholder if there is none."""
    where, name = place_of(function), getattr(function, "__name__", type(function).__name__)
    if where and _found_there(function):
        return where
    text = IN_MEMORY + (name if name.isidentifier() else f"function_{place}")
    GIVEN[text] = function
    return text


def _found_there(function: Any) -> bool:
    try:
        return operator.attrgetter(function.__qualname__)(sys.modules[function.__module__]) is function
    except (AttributeError, KeyError):
        return False
