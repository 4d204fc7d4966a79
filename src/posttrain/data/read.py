"""Read the rows of a dataset, each with its place in the source. Sources are JSONL, JSON, CSV and Parquet, gzip of
these, globs and lists of them, folders that `datasets` saved, Hugging Face dataset names, and generated `task:NAME`.

A row that cannot be read is an error that names the file and the line; no row is skipped silently. Rows are read one
by one, so they need no memory unless the caller keeps them.
"""

from __future__ import annotations

import csv
import glob
import gzip
import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as parquet

from posttrain.data.json_array import hostile_json, iter_array, refuse_deep
from posttrain.errors import DataError
from posttrain.sources import ROWS


def is_saved(path: Path) -> bool:
    """Whether `datasets` wrote this folder with save_to_disk: one dataset, or one for each split."""
    return (path / "dataset_dict.json").is_file() or (path / "state.json").is_file()


def hub_dataset(source: str, split: str) -> Any:
    """A dataset of the Hub, by `name` or `name:config`, or of a folder; it is memory-mapped. Raises `DataError`."""
    from datasets import load_dataset

    if is_saved(Path(source)):
        return _saved_dataset(Path(source), split)
    name, _, config = source.partition(":")
    try:
        return load_dataset(name, config or None, split=split)
    except Exception as error:  # the library raises errors of many kinds; all mean that there are no rows
        reason = str(error).strip().split("\n")[0]
        raise DataError(
            given=f"{source} is not a file here, and the Hugging Face dataset {name!r} cannot be loaded ({reason})",
            allowed="a file, a glob, a Hugging Face dataset name (name or name:config), or task:NAME",
            fix="Check the path or the name; without a network, download the dataset first and name its files.",
        ) from error


def _saved_dataset(folder: Path, split: str) -> Any:
    """A split of a dataset that save_to_disk wrote, or the whole dataset if it has no splits."""
    from datasets import DatasetDict, load_from_disk

    try:
        saved = load_from_disk(folder)
    except Exception as error:  # an error of any kind, as above
        raise DataError(
            given=f"the dataset in {folder} cannot be read ({str(error).strip().partition(chr(10))[0]})",
            allowed="a complete folder, as save_to_disk writes it",
            fix="Save it again, or export it: dataset.to_parquet(...).",
        ) from error
    if not isinstance(saved, DatasetDict):
        return saved
    if split not in saved:
        raise DataError(
            given=f"the dataset in {folder} has no split {split!r}",
            allowed=", ".join(map(str, saved)),
            fix="Set data.split (data.eval_split for held-out data) to one of them, or name the folder of a split.",
        )
    return saved[split]


SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
NO_DATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
"""Files that `datasets` writes next to the data."""
TASK_ROWS = {"train": 4096, "eval": 512}
"""Number of rows that are generated for `task:NAME` if `max_rows` is not set."""

COMPRESSION = 4
"""Assumed ratio of a file's size after and before it is unpacked."""
LONGEST_LINE = 100_000_000
"""Largest size of one line or one CSV field, in bytes. It protects against files that are one endless line."""
PARQUET_ROWS = 1024
"""Number of rows of a Parquet file that are in memory at a time, in addition to their pages."""


class Row(NamedTuple):
    """One row, with its place in the source."""

    values: dict[str, Any]
    origin: str
    """The place as error messages name it, for example "train.jsonl:17"."""


def read_rows(
    source: str | Sequence[str], *, split: str = "train", max_rows: int | None = None, seed: int = 0
) -> list[Row]:
    """Read all rows of the source, or the first `max_rows` of each part of it.

    `split` is "train" or "eval" for generated tasks and the split's name for Hugging Face datasets. Raises `DataError`.
    """
    return list(iter_rows(source, split=split, max_rows=max_rows, seed=seed))


def iter_rows(
    source: str | Sequence[str], *, split: str = "train", max_rows: int | None = None, seed: int = 0
) -> Iterator[Row]:
    """Yield the rows of `read_rows` one by one. Raises `DataError` at the first faulty row."""
    sources, found = _listed(source), False
    for one in sources:
        for row in islice(_read(one, split, max_rows, seed), max_rows):
            found = True
            yield row
    if not found:
        raise DataError(
            given=f"{', '.join(sources)} holds no rows",
            allowed="at least one row",
            fix="Check that the path is right and that the file was written completely.",
        )


def size_of(source: str | Sequence[str], *, split: str = "train") -> int:
    """Estimated size of the source as text, in bytes: the size of its files, times 4 for compressed files."""
    return sum(_size_of(one, split) for one in _listed(source))


def missing_files(source: str | Sequence[str]) -> list[str]:
    """The files and patterns of the source that do not exist. A name of the Hub or of generated rows is no file."""
    named = [one for one in _listed(source) if one.partition(":")[0] not in ROWS]
    files = [one for one in named if glob.has_magic(one) or _looks_like_file(Path(one))]
    places = {one: str(Path(one).expanduser()) for one in files}
    return [one for one, place in places.items() if not os.path.exists(place) and not glob.glob(place)]


def content_key(source: str | Sequence[str], *, split: str, max_rows: int | None, seed: int) -> str:
    """A hash of the files' contents and names, and of the arguments that choose which rows are read."""
    digest = hashlib.sha256(json.dumps([split, max_rows, seed]).encode())
    for one in _listed(source):
        if one.startswith("task:"):
            digest.update(one.encode())
        elif (paths := _paths(one)) is None:
            digest.update(f"{one} {hub_dataset(one, split)._fingerprint}".encode())
        else:
            for path in paths:
                with path.open("rb") as content:
                    digest.update(path.name.encode() + hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()


def _listed(source: str | Sequence[str]) -> list[str]:
    return [source] if isinstance(source, str) else list(source)


def _size_of(source: str, split: str) -> int:
    if source.startswith("task:"):
        return 0
    if (paths := _paths(source)) is None:
        return hub_dataset(source, split).data.nbytes
    return sum(path.stat().st_size * (COMPRESSION if path.suffix in (".gz", ".parquet") else 1) for path in paths)


def _read(source: str, split: str, max_rows: int | None, seed: int) -> Iterator[Row]:
    if source.startswith("task:"):
        yield from _task_rows(source.removeprefix("task:"), split, max_rows, seed)
    elif (paths := _paths(source)) is None:
        yield from _hub_rows(source, split)
    else:
        for path in paths:
            yield from _file_rows(path)


def _paths(source: str) -> list[Path] | None:
    """The files that the source names; None if it is a saved dataset or can only be a dataset of the Hub. A path that
    exists is no pattern, whatever signs it has."""
    if glob.has_magic(source) and not os.path.exists(source):
        paths = [Path(path) for path in sorted(glob.glob(source))]
        if not paths:
            raise DataError(
                given=f"no file matches {source}", allowed="a pattern with at least one match", fix="Check the pattern."
            )
    else:
        paths = [Path(source)]
        if is_saved(paths[0]):
            return None
    for path in paths:
        if path.is_dir():
            raise _is_folder(path)
    if paths[0].is_file():
        return paths
    if _looks_like_file(paths[0]):
        raise DataError(
            given=f"{source} does not exist",
            allowed="a file, a glob, a Hugging Face dataset name, or task:NAME",
            fix=f"Paths are relative to {Path.cwd().name}/, where the command was started.",
        )
    return None


def _looks_like_file(path: Path) -> bool:
    return _form(path) in SUFFIXES or path.suffix in {".txt", ".gz", ".zip"} or len(path.parts) > 2


def _form(path: Path) -> str:
    """The suffix of a file that determines its format, without .gz."""
    return Path(path.stem).suffix if path.suffix == ".gz" else path.suffix


def _is_folder(path: Path) -> DataError:
    inside = sorted(p.name for p in path.iterdir() if _form(p) in SUFFIXES and p.name not in NO_DATA)[:5]
    ends = {"".join(Path(name).suffixes[-2:] if name.endswith(".gz") else Path(name).suffixes[-1:]) for name in inside}
    some = f"for example {path / (inside[0] if inside else 'train.jsonl')}"
    pattern = f"{Path(glob.escape(str(path))) / '*'}{min(ends, default='.jsonl')}"
    fix = f"Name a file, {some}, or a glob such as {pattern}."
    if len(ends) > 1:
        fix = f"Name a file, {some}, or a list of them: [{', '.join(str(path / name) for name in inside)}]."
    return DataError(
        given=f"{path} is a folder" + (f" with {', '.join(inside)}" if inside else " without data files"),
        allowed="a file, a glob, or a folder that datasets wrote with save_to_disk",
        fix=fix,
    )


def _file_rows(path: Path) -> Iterator[Row]:
    readers = {".jsonl": _jsonl_rows, ".json": _json_rows, ".csv": _csv_rows, ".parquet": _parquet_rows}
    if _form(path) not in readers:
        raise DataError(
            given=f"{path.name} has an unknown format",
            allowed=", ".join(SUFFIXES) + ", and these with .gz",
            fix="Convert it to JSONL: one JSON object per line.",
        )
    try:
        yield from readers[_form(path)](path)
    except (OSError, EOFError, UnicodeDecodeError, pa.ArrowException) as error:
        raise DataError(
            given=f"{path} cannot be read ({error})",
            allowed="a whole Parquet file" if _form(path) == ".parquet" else "a whole file in UTF-8",
            fix="Write or copy it again.",
        ) from error


def _text(path: Path) -> io.TextIOBase:
    newline = "" if _form(path) == ".csv" else None
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline=newline)  # type: ignore[return-value]
    return path.open(encoding="utf-8-sig", newline=newline)


def _jsonl_rows(path: Path) -> Iterator[Row]:
    return (row for row, *_ in jsonl_places(path))


def jsonl_places(path: Path) -> Iterator[tuple[Row, int, int, int]]:
    """Each row with the beginning and the end of its line in the unpacked file, in bytes, and its line number."""
    begin = 0
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
        for number, raw in enumerate(iter(partial(lines.readline, LONGEST_LINE), b""), start=1):
            if len(raw) == LONGEST_LINE:
                raise DataError(
                    given=f"{path.name}, line {number}: more than {LONGEST_LINE:,} bytes in one line",
                    allowed="one JSON object per line",
                    fix="Break the file into lines, one for each row.",
                )
            if not raw.isspace():
                yield jsonl_row(raw, path, number), begin, begin + len(raw), number
            begin += len(raw)


def jsonl_row(raw: bytes, path: Path, number: int) -> Row:
    """Parse one line into a row."""
    return _as_row(parse_json(_decoded(raw, path, number).rstrip(), path.name, number), f"{path.name}:{number}")


def plain_jsonl(source: str) -> list[Path] | None:
    """The files of a source that can be read in place, line by line; None for any other source."""
    paths = None if source.startswith("task:") else _paths(source)
    return paths if paths and all(path.suffix == ".jsonl" for path in paths) else None


def _decoded(raw: bytes, path: Path, number: int) -> str:
    try:
        return raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            given=f"{path.name}, line {number}, byte {error.start + 1}: not UTF-8 ({error.reason})",
            allowed="text in UTF-8",
            fix=f"Fix or remove line {number} of {path.name}, or save the whole file as UTF-8.",
        ) from None


def parse_json(line: str, name: str, number: int) -> Any:
    """Parse the JSON value in a line of a file. Raises `DataError` if it is broken or too deep, or holds a huge
    integer."""
    try:
        refuse_deep(line)
        return json.loads(line)
    except json.JSONDecodeError as error:
        begin = max(error.pos - 30, 0)
        snippet = line[begin : error.pos + 30].strip()
        column, reason = f", column {error.colno}", f"broken JSON ({error.msg}) near {snippet!r}"
    except (ValueError, RecursionError) as error:
        column, reason = "", hostile_json(error)
    raise DataError(
        given=f"{name}, line {number}{column}: {reason}",
        allowed="one JSON object per line",
        fix=f"Fix or remove line {number} of {name}; the rows before it were read.",
    )


def _json_rows(path: Path) -> Iterator[Row]:
    with _text(path) as file:
        for number, values in enumerate(iter_array(file, path.name)):
            yield _as_row(values, f"{path.name}[{number}]")


def _csv_rows(path: Path) -> Iterator[Row]:
    with _text(path) as file:
        csv.field_size_limit(LONGEST_LINE)
        reader = csv.DictReader(file, strict=True)
        try:
            _require_header(reader.fieldnames or [], path)
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
                fix="Fix the quotes in that line.",
            ) from None


def _require_header(names: Sequence[str], path: Path) -> None:
    """Refuse a header that names a column twice, because only one of them would be read, and a file with another
    separator. Several columns without a name, as spreadsheets write them, are no loss."""
    twice = next((name for name, count in Counter(names).items() if name and count > 1), None)
    if twice is not None:
        raise DataError(
            given=f"{path.name}, line 1: {Counter(names)[twice]} columns are named {twice!r}",
            allowed="a name of its own for each column",
            fix="Rename or remove one of them.",
        )
    other = next((f"{sign!r}" for sign in (";", "\t", "|") if len(names) == 1 and sign in names[0]), None)
    if other is not None:
        raise DataError(
            given=f"{path.name}, line 1: one column {names[0]!r}: its columns are separated by {other}",
            allowed="columns separated by commas",
            fix=f"Save it with commas: pandas.read_csv(file, sep={other}).to_csv(file, index=False).",
        )


def _parquet_rows(path: Path) -> Iterator[Row]:
    number = 0
    for batch in parquet.ParquetFile(path).iter_batches(PARQUET_ROWS):
        for values in batch.to_pylist():
            yield _as_row(without_fillings(values), f"{path.name}, row {number}")
            number += 1


_CALLS = ("tools", "tool_calls", "function_call")
_INPUTS = ("input", "inputs", "args", "stdin")
_IN_TESTS = (*_CALLS, *_INPUTS, "kwargs", "output", "outputs", "expected", "expected_output", "stdout")
_IN_PAIRS = (*_CALLS, "inputs", "outputs")
"""Names in tests of programs whose values go to the program, or are compared with what it gives."""
_BEGINS = dict.fromkeys(("tests", "verification_info"), _IN_TESTS) | dict.fromkeys(
    ("input_output", "answer", "ground_truth"), _IN_PAIRS
)
"""The columns with tests of programs, and the names in them whose objects have fillings."""


def without_fillings(value: Any, *, names: Sequence[str] = _CALLS, inside: bool = False) -> Any:
    """A value of a row without the keys with null inside tools, tool calls and the values of tests. Arrow, in which
    Parquet and `datasets` hold rows, gives all objects of a column the same keys: a call gets the arguments of other
    calls, as null.

    >>> without_fillings({"answer": None, "tool_calls": [{"name": "f", "arguments": {"x": 1, "of_g": None}}]})
    {'answer': None, 'tool_calls': [{'name': 'f', 'arguments': {'x': 1}}]}
    >>> without_fillings({"tests": [{"input": {"x": 1, "of_g": None}, "output": None}]})
    {'tests': [{'input': {'x': 1}, 'output': None}]}
    """
    if isinstance(value, dict):
        kept = {key: one for key, one in value.items() if not (inside and one is None)}
        return {
            key: without_fillings(one, names=_BEGINS.get(key, names), inside=inside or key in names)
            for key, one in kept.items()
        }
    if isinstance(value, list):
        found = [without_fillings(one, names=names, inside=inside) for one in value]
        return _with_own_keywords(found) if names is _IN_TESTS and not inside else found
    return value


def _with_own_keywords(tests: list[Any]) -> list[Any]:
    """The tests of a row, in which a keyword that one of them gives a value is null in the others: they call the same
    function, so it is no filling."""
    calls: dict[str, list[dict[str, Any]]] = {}
    for test in tests:
        for name in _INPUTS:
            if isinstance(test, dict) and isinstance(test.get(name), dict):
                calls.setdefault(f"{name} of {test.get('fn_name')}", []).append(test[name])
    for given in calls.values():
        for keyword in dict.fromkeys(keyword for one in given for keyword in one):
            for one in given:
                one.setdefault(keyword, None)
    return tests


def _as_row(values: Any, origin: str) -> Row:
    if not isinstance(values, dict):
        raise DataError(
            given=f"{origin} is a JSON {type(values).__name__}, not an object",
            allowed='an object with named columns, such as {"prompt": ..., "answer": ...}',
            fix="Give each row named columns.",
        )
    return Row(values=values, origin=origin)


def _task_rows(name: str, split: str, max_rows: int | None, seed: int) -> Iterator[Row]:
    task = ROWS["task"](name)
    for number, values in enumerate(task.rows(max_rows or TASK_ROWS[split], seed=seed, split=split)):
        yield Row(values=values, origin=f"task:{name}, {split} row {number}")


def _hub_rows(source: str, split: str) -> Iterator[Row]:
    """Read a dataset of the Hugging Face Hub, `name` or `name:config`, or a saved one. HF_HOME, HF_HUB_OFFLINE and
    HF_TOKEN have their usual effect."""
    for number, values in enumerate(hub_dataset(source, split)):
        yield _as_row(without_fillings(dict(values)), f"{source} [{split}], row {number}")
