"""Rows of a dataset, each with the place it came from, whatever the form: JSONL, JSON, CSV, Parquet, gzip of these,
globs and lists of them, Hugging Face dataset names, and the generated `task:NAME`.

A row that cannot be read is an error that names the file and the line; nothing is skipped in silence.
"""

from __future__ import annotations

import csv
import glob
import gzip
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from posttrain.errors import DataError

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
TASK_ROWS = {"train": 4096, "eval": 512}
"""Rows that are generated for `task:NAME` when `max_rows` does not say how many."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row, and where it stands: what an error calls it."""

    values: dict[str, Any]
    origin: str
    """For example "train.jsonl:17"."""


def read_rows(
    source: str | Sequence[str], *, split: str = "train", max_rows: int | None = None, seed: int = 0
) -> list[Row]:
    """All rows of the source, or the first `max_rows` of each part of it.

    `split` is "train" or "eval" for generated tasks and the split's name for Hugging Face datasets. Raises `DataError`.
    """
    sources = [source] if isinstance(source, str) else list(source)
    rows = [row for one in sources for row in _limited(_read(one, split, max_rows, seed), max_rows)]
    if not rows:
        raise DataError(
            given=f"{', '.join(sources)} holds no rows",
            allowed="at least one row",
            fix="Check that the path is right and that the file was written completely.",
        )
    return rows


def _limited(rows: Iterator[Row], max_rows: int | None) -> Iterator[Row]:
    for number, row in enumerate(rows):
        if max_rows is not None and number >= max_rows:
            return
        yield row


def _read(source: str, split: str, max_rows: int | None, seed: int) -> Iterator[Row]:
    if source.startswith("task:"):
        yield from _task_rows(source.removeprefix("task:"), split, max_rows, seed)
        return
    paths = sorted(glob.glob(source)) if glob.has_magic(source) else [source]
    if not paths:
        raise DataError(
            given=f"no file matches {source}", allowed="a pattern with at least one match", fix="Check the pattern."
        )
    for path in map(Path, paths):
        if path.is_file():
            yield from _file_rows(path)
        elif path.is_dir():
            raise _is_folder(path)
        elif _looks_like_file(path):
            raise DataError(
                given=f"{path} does not exist",
                allowed="a file, a glob, a Hugging Face dataset name, or task:NAME",
                fix=f"Paths are relative to {Path.cwd().name}/, where the command was started.",
            )
        else:
            yield from _hub_rows(source, split)


def _looks_like_file(path: Path) -> bool:
    return _form(path) in SUFFIXES or path.suffix in {".txt", ".gz", ".zip"} or len(path.parts) > 2


def _form(path: Path) -> str:
    """The suffix that says how to read the file, without .gz."""
    return Path(path.stem).suffix if path.suffix == ".gz" else path.suffix


def _is_folder(path: Path) -> DataError:
    inside = sorted(p.name for p in path.iterdir() if _form(p) in SUFFIXES)[:5]
    example = inside[0] if inside else "train.jsonl"
    return DataError(
        given=f"{path} is a folder" + (f" with {', '.join(inside)}" if inside else " without data files"),
        allowed="a file or a glob",
        fix=f"Name a file, for example {path / example}, or a glob such as {path / '*'}{_form(Path(example))}.",
    )


def _file_rows(path: Path) -> Iterator[Row]:
    readers = {".jsonl": _jsonl_rows, ".json": _json_rows, ".csv": _csv_rows, ".parquet": _parquet_rows}
    if _form(path) not in readers:
        raise DataError(
            given=f"{path.name} has a form that is not known",
            allowed=", ".join(SUFFIXES) + ", and these with .gz",
            fix="Convert it to JSONL: one JSON object per line.",
        )
    try:
        yield from readers[_form(path)](path)
    except (OSError, EOFError, UnicodeDecodeError, pa.ArrowException) as error:
        raise DataError(
            given=f"{path} cannot be read ({error})", allowed="a whole file in UTF-8", fix="Write or copy it again."
        ) from error


def _text(path: Path) -> io.TextIOBase:
    newline = "" if _form(path) == ".csv" else None
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline=newline)  # type: ignore[return-value]
    return path.open(encoding="utf-8-sig", newline=newline)


def _jsonl_rows(path: Path) -> Iterator[Row]:
    with _text(path) as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _as_row(_parse(line.rstrip(), path, number), f"{path.name}:{number}")


def _parse(line: str, path: Path, number: int) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        begin = max(error.pos - 30, 0)
        snippet = line[begin : error.pos + 30].strip()
        raise DataError(
            given=f"{path.name}, line {number}, column {error.colno}: broken JSON ({error.msg}) near {snippet!r}",
            allowed="one JSON object per line",
            fix=f"Mend or remove line {number} of {path.name}; the rows before it were read.",
        ) from None


def _json_rows(path: Path) -> Iterator[Row]:
    with _text(path) as file:
        text = file.read()
    if not text.strip():
        return
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        hint = " It looks like JSONL: rename it to .jsonl." if error.msg == "Extra data" else ""
        raise DataError(
            given=f"{path.name}, line {error.lineno}, column {error.colno}: broken JSON ({error.msg})",
            allowed="a JSON array of objects",
            fix=f"Mend the file.{hint}",
        ) from None
    if not isinstance(found, list):
        raise DataError(
            given=f"{path.name} holds a JSON {type(found).__name__}",
            allowed="an array of objects: [{...}, {...}]",
            fix="Write one array, or one object per line in a .jsonl file.",
        )
    for number, values in enumerate(found):
        yield _as_row(values, f"{path.name}[{number}]")


def _csv_rows(path: Path) -> Iterator[Row]:
    with _text(path) as file:
        reader = csv.DictReader(file, strict=True)
        try:
            for values in reader:
                if None in values or None in values.values():
                    raise DataError(
                        given=f"{path.name}, line {reader.line_num}: its number of fields differs from the header's "
                        f"{len(reader.fieldnames or [])}",
                        allowed=f"the columns {', '.join(reader.fieldnames or [])}",
                        fix="Quote fields that contain commas.",
                    )
                yield _as_row(dict(values), f"{path.name}:{reader.line_num}")
        except csv.Error as error:
            raise DataError(
                given=f"{path.name}, line {reader.reader.line_num}: broken CSV ({error})",
                allowed="CSV with a header line",
                fix="Mend the quotes of that line.",
            ) from None


def _parquet_rows(path: Path) -> Iterator[Row]:
    number = 0
    for batch in parquet.ParquetFile(path).iter_batches():
        for values in batch.to_pylist():
            yield _as_row(values, f"{path.name}, row {number}")
            number += 1


def _as_row(values: Any, origin: str) -> Row:
    if not isinstance(values, dict):
        raise DataError(
            given=f"{origin} is a JSON {type(values).__name__}, not an object",
            allowed='an object with named columns, such as {"prompt": ..., "answer": ...}',
            fix="Give each row named columns.",
        )
    return Row(values=values, origin=origin)


def _task_rows(name: str, split: str, max_rows: int | None, seed: int) -> Iterator[Row]:
    from posttrain.tasks import find_task

    task = find_task(name)
    for number, values in enumerate(task.rows(max_rows or TASK_ROWS[split], seed=seed, split=split)):
        yield Row(values=values, origin=f"task:{name}, {split} row {number}")


def _hub_rows(source: str, split: str) -> Iterator[Row]:
    """A dataset of the Hugging Face Hub, `name` or `name:config`; honours HF_HOME, HF_HUB_OFFLINE and HF_TOKEN."""
    from datasets import load_dataset

    name, _, config = source.partition(":")
    try:
        dataset = load_dataset(name, config or None, split=split)
    except Exception as error:  # the library raises many kinds, from the network up; all mean that there are no rows
        reason = str(error).strip().split("\n")[0]
        raise DataError(
            given=f"{source} is no file here, and the Hugging Face dataset {name!r} cannot be loaded ({reason})",
            allowed="a file, a glob, a Hugging Face dataset name (name or name:config), or task:NAME",
            fix="Check the path or the name; without a network, download the dataset first and name its files.",
        ) from error
    for number, values in enumerate(dataset):
        yield _as_row(dict(values), f"{source} [{split}], row {number}")
