"""Data that Python code passes to a run: sources, rows as mappings, or a dataset in memory."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from posttrain.config import DataConfig
from posttrain.data.read import Row, read_rows, without_fillings
from posttrain.errors import DataError

Source = str | PathLike[str]
Data = Source | Iterable[Source] | Iterable[Mapping[str, Any]]
"""A source as in `data.train`, several of them, or the rows themselves, such as a Hugging Face dataset in memory."""

FOLDER = "rows"
"""The folder of a run for rows that were passed as Python objects. Its files are named after their content."""


def is_source(data: Any) -> bool:
    """Whether `data` consists of sources, which a config can hold."""
    if isinstance(data, list | tuple):
        return all(isinstance(one, str | PathLike) for one in data)
    return data is None or isinstance(data, str | PathLike)


def as_file(rows: Iterable[Row], what: str) -> tuple[str, bytes]:
    """The rows as JSONL, with a file name that contains a hash of the content. `what` is "train", "eval" or
    "auxiliary"."""
    content = b"".join(json.dumps(row.values, default=partial(_as_json, row)).encode() + b"\n" for row in _whole(rows))
    return f"{FOLDER}/{what}-{hashlib.sha256(content).hexdigest()[:16]}.jsonl", content


def _whole(rows: Iterable[Row]) -> Iterable[Row]:
    for row in rows:
        if strange := [name for name in row.values if not isinstance(name, str)]:
            raise _not_json(row, f"the column name {strange[0]!r}")
        yield row


def _as_json(row: Row, value: Any) -> Any:
    if hasattr(value, "tolist"):  # an array of numpy or torch
        return value.tolist()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise _not_json(row, f"a {type(value).__name__}")


def _not_json(row: Row, what: str) -> DataError:
    return DataError(
        given=f"{row.origin} of the data holds {what}, which cannot be saved with the run",
        allowed="text, numbers, true, false, None, dates, arrays, and lists and dicts of these",
        fix="Leave the column out, or write it as text.",
    )


def where_the_run_is(config: DataConfig, folder: Path) -> DataConfig:
    """The config with its sources replaced by the rows saved in the run folder, wherever that folder is now. Raises
    `DataError` if these rows have changed."""
    found: dict[str, str] = {}
    for name in ("train", "eval", "auxiliary"):
        source = getattr(config, name)
        if not isinstance(source, str) or Path(source).parent.name != FOLDER:
            continue
        if (file := folder / FOLDER / Path(source).name).is_file():
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            if digest[:16] not in file.name:
                raise DataError(
                    given=f"{file} differs from the rows that the run was given: its content has changed",
                    allowed="the rows with which the run was started",
                    fix="Restore the file, or train a new run.",
                )
            found[name] = str(file)
    return config.model_copy(update=found)


def given_rows(data: Data) -> list[Row]:
    """All rows of `data`. Raises `DataError` if it is neither rows nor a source."""
    rows = [row for place, item in enumerate(_items(data)) for row in _rows_of(item, place)]
    if hasattr(data, "features"):  # a dataset of the library datasets
        return [row._replace(values=without_fillings(row.values)) for row in rows]
    return rows


def _items(data: Data) -> Iterable[Any]:
    if isinstance(data, str | PathLike):
        return [data]
    if isinstance(data, Mapping):
        names = list(map(str, data))
        raise DataError(
            given=f"data is one {type(data).__name__} with {', '.join(names) or 'nothing in it'}",
            allowed="a source, several of them, or rows",
            fix=f'Choose one split, data["{names[0] if names else "test"}"]; pass a single row in a list, [data].',
        )
    if hasattr(data, "columns") and (hasattr(data, "to_dict") or hasattr(data, "to_dicts")):
        raise DataError(
            given=f"data is a {type(data).__name__}, which is read column by column",
            allowed="a source, several of them, or rows, each a mapping of its columns",
            fix='Pass its rows: data.to_dict("records") with pandas, data.to_dicts() with polars.',
        )
    if isinstance(data, Iterable):
        return data
    raise _no_rows("data", data)


def _rows_of(item: Any, place: int) -> list[Row]:
    """The rows of one item, which is either a row or a source."""
    if isinstance(item, Mapping):
        row = Row(values=dict(item), origin=f"row {place}")
        _require_text_as_keys(row)
        return [row]
    if isinstance(item, str | PathLike):
        source = os.fspath(item)
        return read_rows(source, split=_split(source))
    raise _no_rows(f"item {place} of data", item)


def _require_text_as_keys(row: Row) -> None:
    """Raise `DataError` for a nested key that is not text. JSON, in which a run saves its rows, would make text of it:
    a reward would then find other keys in training than in an evaluation of the same rows."""
    for column, value in row.values.items():
        for key in _keys_within(value):
            if not isinstance(key, str):
                raise DataError(
                    given=f"{row.origin} of the data has the key {key!r} in its column {column!r}",
                    allowed="text as the keys of nested mappings, because JSON has no others",
                    fix=f'Write the key as text, "{key}", also where your functions read it.',
                )


def _keys_within(value: Any) -> Iterator[Any]:
    """The keys of all mappings in a value."""
    if isinstance(value, Mapping):
        yield from value
        value = value.values()
    elif not isinstance(value, list | tuple):
        return
    for one in value:
        if isinstance(one, Mapping | list | tuple):
            yield from _keys_within(one)


def _no_rows(what: str, value: Any) -> DataError:
    return DataError(
        given=f"{what} is of type {type(value).__name__}",
        allowed="a source, several of them, or rows, each a mapping of its columns",
        fix='For example data=[{"prompt": "2 + 2 =", "answer": "4"}], or data="test.jsonl".',
    )


def _split(source: str) -> str:
    return "eval" if source.startswith("task:") else "test"
