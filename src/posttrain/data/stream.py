"""Data larger than memory: rows are read, and records are tokenised, only when they are requested.

Before the run all rows are read twice and none is kept: first to find the beginning of each row, its prompt's hash and
broken rows, then to find rows that cannot be used as this kind of data. Some fifty bytes stay in memory for each row.
A sample and the longest rows are tokenised before the run. Every other row is tokenised in the step that takes it. If
it then turns out to be unusable, it is left out, counted and reported, and the next row replaces it. The rows of a
step are still a pure function of the data, the seed and the step.

JSONL is read in place. Any other source is first written to the cache folder as JSONL, under a hash of its content.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar, overload

import numpy as np

from posttrain.cache import cache_folder, code_key, tokenizer_key
from posttrain.data.columns import PROMPT_NAMES, Names, renamed, renamed_rows
from posttrain.data.dropped import Dropped, counted, refuse_too_many, too_many
from posttrain.data.forms import Form
from posttrain.data.read import Row, content_key, iter_rows, jsonl_places, plain_jsonl
from posttrain.data.sampled_pairs import is_sampled_pair
from posttrain.data.texts import asked_words, key_of
from posttrain.errors import DataError, DoesNotFit
from posttrain.files import write_atomically
from posttrain.types import Prompt

STREAMED_FROM = 20_000_000
"""Size of the text, in bytes, above which `data.streaming: auto` streams. As much takes some ten seconds to tokenise
and 200 MB of memory."""
SAMPLE, LONGEST = 1_000, 4_000
"""Numbers of rows that are tokenised before the run: a sample, and the longest of the rows that may not fit."""
AT_ONCE = 1_000
"""Number of rows between two checks for changes of the files."""
SHOWN = 8
"""Number of rows left out during the run that are reported one by one."""
CODE = "data/*.py"

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RowSource:
    """The source of rows: the arguments of `iter_rows`."""

    paths: tuple[str, ...]
    split: str
    max_rows: int | None
    seed: int

    def rows(self) -> Iterator[Row]:
        return iter_rows(self.paths, split=self.split, max_rows=self.max_rows, seed=self.seed)

    def key(self) -> str:
        """A hash of the data and of the code that reads it."""
        content = content_key(self.paths, split=self.split, max_rows=self.max_rows, seed=self.seed)
        return hashlib.sha256(f"{content} {code_key(CODE)}".encode()).hexdigest()[:32]

    def jsonl(self) -> list[list[Path]] | None:
        """The files of each part of the source if all can be read in place; otherwise None."""
        parts = [plain_jsonl(path) for path in self.paths]
        return None if None in parts else [part for part in parts if part]


# --- positions of rows ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class RowIndex:
    """The position of each row in some files of lines: file, line, beginning and end."""

    files: Sequence[Path]
    begins_N: np.ndarray
    ends_N: np.ndarray
    lines_N: np.ndarray
    files_N: np.ndarray
    columns: Sequence[str]
    """The columns of all rows together."""
    sampled_N: np.ndarray
    """True for rows that are pairs sampled by an earlier run."""
    asked_N: np.ndarray
    """The column with the text of each row's prompt, as a place in `PROMPT_NAMES`; -1 if it is not text."""
    prompts_N: np.ndarray
    """The hash of that text."""
    copied: bool
    """Whether the file is a copy in the cache. Each of its lines holds the origin of a row and the row."""

    ARRAYS = ("begins_N", "ends_N", "lines_N", "files_N", "sampled_N", "asked_N", "prompts_N")

    @staticmethod
    def open(source: RowSource) -> RowIndex:
        """Load the index from the cache, or build it by reading all rows. Raises `DataError` for an unreadable row."""
        folder, key, parts = cache_folder("data"), source.key(), source.jsonl()
        copy = folder / f"{key}.rows.jsonl"
        files = [copy] if parts is None else [path for part in parts for path in part]
        with suppress(Exception):  # the cached index is missing or damaged
            return RowIndex.read(folder / f"{key}.npz", files, copied=parts is None)
        if parts is None:
            found = _index(_copied(source.rows(), copy))
        else:
            found = _index(_in_place(parts, source.max_rows))
        if not len(found["begins_N"]):
            next(source.rows())  # raises the error for a source without rows
        index = RowIndex(files=files, copied=parts is None, **found)
        with suppress(OSError, DoesNotFit):  # on failure, the next run reads all rows again
            index.write(folder / f"{key}.npz")
        return index

    def write(self, file: Path) -> None:
        content = io.BytesIO()
        about = {"columns": list(self.columns), "sizes": [path.stat().st_size for path in self.files]}
        np.savez(content, about=json.dumps(about), **{name: getattr(self, name) for name in self.ARRAYS})
        write_atomically(file, content.getvalue())

    @staticmethod
    def read(file: Path, files: Sequence[Path], *, copied: bool) -> RowIndex:
        with np.load(file, allow_pickle=False) as content:  # its parts have checksums
            about = json.loads(str(content["about"]))
            assert about["sizes"] == [path.stat().st_size for path in files]
            arrays = {name: content[name] for name in RowIndex.ARRAYS}
        return RowIndex(files=files, columns=about["columns"], copied=copied, **arrays)


Place = tuple[Row, int, int, int, int]
"""A row, the index of its file, the beginning and the end of its line in bytes, and the line number."""


def _in_place(parts: Sequence[Sequence[Path]], max_rows: int | None) -> Iterator[Place]:
    number = -1
    for part in parts:
        left = max_rows
        for path in part:
            number += 1
            for row, begin, end, line in islice(jsonl_places(path), left):
                yield row, number, begin, end, line
                left = None if left is None else left - 1


def _copied(rows: Iterable[Row], file: Path) -> Iterator[Place]:
    """Write the rows to a file while they are read. Raises `DoesNotFit` if there is no room."""
    draft = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(file)
        with draft.open("wb") as out:
            begin = 0
            for number, row in enumerate(rows):
                line = json.dumps([row.origin, row.values], default=partial(_as_json, row)).encode() + b"\n"
                out.write(line)
                yield row, 0, begin, begin + len(line), number
                begin += len(line)
        draft.rename(file)
    except OSError as error:
        raise DoesNotFit(
            given=f"rows cannot be written to {file.parent} ({error.strerror})",
            allowed="a writable folder, with room for the rows as JSONL",
            fix="Free some space, set the environment variable POSTTRAIN_CACHE to another folder, or set "
            "data.streaming = false if the data fits into memory.",
        ) from error
    finally:
        draft.unlink(missing_ok=True)


def _remove_abandoned(file: Path) -> None:
    """Remove the drafts of processes that were killed."""
    for draft in file.parent.glob(f"{file.name}.*.part"):
        with suppress(ValueError, OSError):
            writer = int(draft.name.split(".")[-2])
            try:
                os.kill(writer, 0)
            except ProcessLookupError:
                draft.unlink(missing_ok=True)


def _index(places: Iterator[Place]) -> dict[str, Any]:
    columns, sampled = dict[str, None](), bytearray()
    begins, ends, lines, files = array("q"), array("q"), array("q"), array("i")
    asked, prompts = array("b"), array("Q")
    for row, file, begin, end, line in places:
        column, prompt = _asked(row.values)
        asked.append(column)
        prompts.append(prompt)
        columns.update(dict.fromkeys(row.values))
        sampled.append("prompt_ids" in row.values and is_sampled_pair(row))
        begins.append(begin)
        ends.append(end)
        lines.append(line)
        files.append(file)
    return {
        "columns": list(columns),
        "begins_N": np.asarray(begins),
        "ends_N": np.asarray(ends),
        "lines_N": np.asarray(lines),
        "files_N": np.asarray(files),
        "sampled_N": np.frombuffer(sampled, dtype=np.bool_),
        "asked_N": np.asarray(asked),
        "prompts_N": np.asarray(prompts),
    }


def _asked(values: Mapping[str, Any]) -> tuple[int, int]:
    """The first column of the prompt, as a place in `PROMPT_NAMES`, and the hash of its text; -1 and 0 without text."""
    for place, name in enumerate(PROMPT_NAMES):
        if name in values:
            text = values[name]
            return (place, key_of(text)) if isinstance(text, str) and text.strip() else (-1, 0)
    return -1, 0


# --- values that JSON cannot represent --------------------------------------------------------------------------------

_CODECS: Mapping[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "bytes": (bytes, bytes.hex, bytes.fromhex),
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),
    "date": (date, date.isoformat, date.fromisoformat),
    "time": (time, time.isoformat, time.fromisoformat),
    "decimal": (Decimal, str, Decimal),
    "timedelta": (timedelta, lambda value: [value.days, value.seconds, value.microseconds], lambda d: timedelta(*d)),
}
"""Name -> the type, the function that writes it, and the function that reads it."""
_MARK = "\0type "
_MARK_IN_JSON = json.dumps(_MARK).strip('"').encode()


def _as_json(row: Row, value: Any) -> Any:
    for name, (kind, write, _) in _CODECS.items():
        if isinstance(value, kind):
            return {_MARK + name: write(value)}
    raise DataError(
        given=f"{row.origin} holds a {type(value).__name__}, which cannot be streamed",
        allowed="text, numbers, true, false, null, dates, bytes, and lists and objects of these",
        fix="Leave its column out, or set data.streaming = false if the data fits into memory.",
    )


def _from_json(found: dict[str, Any]) -> Any:
    name = next(iter(found), "") if len(found) == 1 else ""
    return _CODECS[name.removeprefix(_MARK)][2](found[name]) if name.startswith(_MARK) else found


# --- rows -------------------------------------------------------------------------------------------------------------


class StreamedRows(Sequence[Row]):
    """The rows of a source at `places_N`. Each is read when it is requested; taking a slice reads nothing."""

    def __init__(self, index: RowIndex, places_N: np.ndarray, names: Names = MappingProxyType({})) -> None:
        """`names` is `data.columns`."""
        self.row_index, self.places_N, self.names = index, places_N, names
        self.columns = list(renamed(dict.fromkeys(index.columns), names))
        self._open = [path.open("rb", buffering=0) for path in index.files]  # stay readable if files are replaced
        self._files = [file.fileno() for file in self._open]
        self._names = [f"{path.name}:" for path in index.files]
        self._known = self._states()

    @staticmethod
    def open(source: RowSource) -> StreamedRows:
        """All rows of a source. Raises `DataError` for an unreadable row."""
        index = RowIndex.open(source)
        return StreamedRows(index, np.arange(len(index.begins_N)))

    @property
    def sampled_N(self) -> np.ndarray:
        """One entry for each of these rows: True if it is a pair that an earlier run sampled."""
        return self.row_index.sampled_N[self.places_N]

    def prompts_in(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """The mask of those rows whose prompt is text in this column, and the hashes of all rows' prompts, which mean
        nothing for the others."""
        name = self.names.get(column, column)
        place = PROMPT_NAMES.index(name) if name in PROMPT_NAMES else len(PROMPT_NAMES)
        return self.row_index.asked_N[self.places_N] == place, self.row_index.prompts_N[self.places_N]

    def where(self, wanted_N: np.ndarray) -> StreamedRows:
        """The rows for which `wanted_N` is True. It has one entry for each of these rows."""
        return StreamedRows(self.row_index, self.places_N[wanted_N], self.names)

    def named(self, names: Names) -> StreamedRows:
        return StreamedRows(self.row_index, self.places_N, names)

    def __len__(self) -> int:
        return len(self.places_N)

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> StreamedRows: ...
    def __getitem__(self, place: int | slice) -> Row | StreamedRows:
        if isinstance(place, slice):
            return StreamedRows(self.row_index, self.places_N[place], self.names)
        return next(self._rows(self.places_N[place : place + 1 or None]))

    def __iter__(self) -> Iterator[Row]:
        for begin in range(0, len(self), AT_ONCE):
            yield from self._rows(self.places_N[begin : begin + AT_ONCE])

    def _rows(self, places_n: np.ndarray) -> Iterator[Row]:
        return iter(renamed_rows(self._as_written(places_n), self.names))

    def _as_written(self, places_n: np.ndarray) -> Iterator[Row]:
        """Read rows without checks: building the index has already found all faults."""
        index, loads = self.row_index, json.loads
        where_n4 = np.stack([x[places_n] for x in (index.files_N, index.begins_N, index.ends_N, index.lines_N)], axis=1)
        if self._states() != self._known:
            raise self._changed()
        for number, begin, end, line in where_n4.tolist():
            raw = os.pread(self._files[number], end - begin, begin)
            if index.copied:
                origin, values = loads(raw, object_hook=_from_json if _MARK_IN_JSON in raw else None)
                yield Row(values=values, origin=origin)
            else:
                text = raw.decode("utf-8" if line > 1 else "utf-8-sig").rstrip()  # JSON knows only some white space
                yield Row(values=loads(text), origin=self._names[number] + str(line))

    def _states(self) -> list[tuple[int, int]]:
        found = map(os.fstat, self._files)
        return [(state.st_size, state.st_mtime_ns) for state in found]

    def _changed(self) -> DataError:
        return DataError(
            given=f"{', '.join(map(str, self.row_index.files))}: the data changed while the run was reading it",
            allowed="data that does not change while it is read",
            fix="Start again when the data is complete.",
        )


# --- records ----------------------------------------------------------------------------------------------------------


NOT_COMPARED = ("label", "labels", "margin", "score")
"""Columns with numbers about given answers. Rows that differ only in these count as the same row."""


class StreamedRecords(Sequence[T], Generic[T]):
    """Streamed rows, each rendered when it is requested.

    The next usable row replaces a row that cannot be used. Raises `DataError` as soon as a larger share than
    `max_dropped` of all rows seems to be unusable.
    """

    def __init__(
        self, rows: StreamedRows, render: partial[T | Dropped], record: type[T], *, max_dropped: float, what: str
    ) -> None:
        self.rows, self.render, self.record, self.max_dropped, self.what = rows, render, record, max_dropped, what
        self._untold: list[str] = []
        self._tell: Callable[[str], None] = self._untold.append
        self.finish: Callable[[T], T] = lambda record: record
        self._left_out: dict[int, Dropped] = {}
        """Index of a row -> why it was left out."""
        self.columns: dict[str, Any] = {}
        """For prompts: the other columns, which rewards receive."""
        self._ready = False
        self._read_all()
        self._try_some()

    def __len__(self) -> int:
        return len(self.usable_N)

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[T]: ...
    def __getitem__(self, place: int | slice) -> T | Sequence[T]:
        chosen = range(len(self))[place]
        if not isinstance(chosen, int):
            return tuple(found for one in chosen if (found := self._usable(one)) is not None)
        following = (self._usable((chosen + step) % len(self)) for step in range(len(self)))
        return next(found for found in following if found is not None)  # _refuse_too_many raises if none is left

    def __iter__(self) -> Iterator[T]:
        """Yield each usable record once, without replacements for unusable ones."""
        return (found for place in range(len(self)) if (found := self._usable(place)) is not None)

    def key(self) -> str:
        """A hash of the values that are read from the rows, of their order, and of the settings that tokenise them."""
        settings = {name: _plain(value) for name, value in self.render.keywords.items()}
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
        for part in (self._values.digest(), self.texts_N, self.numbers):
            digest.update(bytes(part))
        return digest.hexdigest()

    def shared_with(self, rows: Iterable[Row], *, whole: bool = False) -> int:
        """The number of `rows` whose exact text is also in these records. `whole`: with the same values in all columns,
        for which the records are read again."""
        if whole:
            seen = {key_of(repr(sorted(values.items()))) for values in self._read(self.rows)}
            return sum(key_of(repr(sorted(values.items()))) in seen for values in self._read(rows))
        texts = [key_of(self._words(values)) for values in self._read(rows)]
        return int(np.isin(np.asarray(texts, dtype=np.uint64), self.texts_N).sum())

    def prompts_shared_with(self, rows: Iterable[Row]) -> int:
        """The number of `rows` whose prompt is also in these records. Records of prompts do not know it."""
        prompts = [key_of(asked_words(values) or "") for values in self._read(rows)]
        return int(np.isin(np.asarray(prompts, dtype=np.uint64), self.prompts_N).sum())

    def _read(self, rows: Iterable[Row]) -> Iterator[Mapping[str, Any]]:
        form, chat = self.render.keywords["form"], self.render.keywords["renderer"].chat
        read = (row.values if is_sampled_pair(row) else form.read(row, chat=chat) for row in rows)
        return (values for values in read if not isinstance(values, Dropped))

    # --- before the run ---

    def _read_all(self) -> None:
        """Find the rows that can be read as this kind of data, and collect their properties that need no tokens."""
        usable, numbers, texts, sizes, prompts = array("q"), array("d"), array("Q"), array("q"), array("Q")
        read, chat = self.render.keywords["form"].read, self.render.keywords["renderer"].chat
        self._values = hashlib.sha256()
        sampled_N = self.rows.sampled_N
        for place, row in enumerate(self.rows):
            values = row.values if sampled_N[place] else read(row, chat=chat)
            if isinstance(values, Dropped):
                self._left_out[place] = values
                continue
            if self.record is Prompt:
                self._values.update(repr(values).encode())
                self.columns.update(values)
            else:
                number = values.get("margin", values.get("label", values.get("score")))
                numbers.append(math.nan if number is None else number)
                prompts.append(key_of(asked_words(values) or ""))
            words = self._words(values)
            usable.append(place)
            texts.append(key_of(words))
            sizes.append(len(words))
        self.columns = {name: None for name in self.columns if name != "prompt"}
        self.usable_N, self._sizes_N = np.asarray(usable), np.asarray(sizes)
        self.numbers, self.texts_N, self.prompts_N = np.asarray(numbers), np.asarray(texts), np.asarray(prompts)

    def _words(self, values: Mapping[str, Any]) -> str:
        """A text that is equal for rows with the same text: the prompt, or for given answers all columns except
        numbers."""
        if self.record is not Prompt:
            return repr([value for name, value in values.items() if name not in NOT_COMPARED])
        return values["prompt"] if isinstance(values["prompt"], str) else repr(values["prompt"])

    def _try_some(self) -> None:
        """Tokenise the longest rows and a sample from the whole data, and remove those that turn out to be unusable."""
        size, limit = len(self), self.render.keywords.get("max_length", 0)
        self._tried_N, self._bad_N = np.zeros(size, dtype=np.bool_), np.zeros(size, dtype=np.bool_)
        self._tried = self._bad = 0
        """Numbers of tried rows and of unusable ones among them. They are a sample of all rows except the longest."""
        order_N = np.argsort(self._sizes_N, kind="stable")[::-1]
        longest = order_N[self._sizes_N[order_N] > limit][:LONGEST].tolist()
        for place in longest:
            self._usable(place)
        self._certain, self._others = len(self._left_out), size - len(longest)
        self._tried = self._bad = 0
        for place in np.linspace(0, size - 1, min(SAMPLE, size)).astype(int).tolist():
            self._usable(place)
        self._refuse_too_many()
        good_N = ~self._bad_N
        for name in ("usable_N", "texts_N", "_tried_N", "_bad_N"):
            setattr(self, name, getattr(self, name)[good_N])
        if len(self.numbers):
            self.numbers, self.prompts_N = self.numbers[good_N], self.prompts_N[good_N]
        self._ready = True

    def _refuse_too_many(self) -> None:
        """Raise the error for too many dropped rows, on the assumption that untried rows are like the tried ones."""
        expected = self._certain + (self._bad / self._tried * self._others if self._tried else 0)
        if expected > self.max_dropped * len(self.rows) or len(self._left_out) == len(self.rows):
            raise too_many(self.dropped, len(self.rows) - self._others + self._tried, self.max_dropped, self.what)

    # --- a row ---

    def _usable(self, place: int) -> T | None:
        """The record of a row, or None if it is left out."""
        if self._bad_N[place]:
            return None
        index = int(self.usable_N[place])
        found = self.render(self.rows[index], index)
        self._tried += not self._tried_N[place]
        self._tried_N[place] = True
        if not isinstance(found, Dropped):
            return self.finish(found)
        self._bad_N[place] = True
        self._bad += 1
        self._left_out[index] = found
        if self._ready:
            self._refuse_too_many()
            late = len(self._left_out)
            if late.bit_count() == 1 or late <= SHOWN:  # report each of the first rows, then fewer and fewer
                self._tell(f"{self.what}: left out {found.origin}: {found.reason} ({counted(late, 'row')} so far)")
        return None

    def tell(self, say: Callable[[str], None]) -> None:
        """Report rows that are left out with `say` from now on, and first those that were left out before this call."""
        for sentence in self._untold:
            say(sentence)
        self._tell = say

    @property
    def dropped(self) -> list[Dropped]:
        """The rows dropped so far, in the order of the data."""
        return [self._left_out[index] for index in sorted(self._left_out)]


def collect(
    rows: Sequence[Row], render: partial[T | Dropped], record: type[T], *, max_dropped: float, what: str
) -> tuple[Sequence[T], Sequence[Dropped]]:
    """Call `render(row, index)` for all rows, and return the records and the dropped rows. Streamed rows are rendered
    one by one when they are requested.

    The keywords of `render` hold everything that rendering depends on. Raises `DataError` if too many are dropped.
    """
    if isinstance(rows, StreamedRows):
        streamed = StreamedRecords(rows, render, record, max_dropped=max_dropped, what=what)
        return streamed, streamed.dropped
    found = [render(row, index) for index, row in enumerate(rows)]
    dropped = [one for one in found if isinstance(one, Dropped)]
    refuse_too_many(dropped, len(rows), max_dropped, what)
    return tuple(one for one in found if isinstance(one, record)), tuple(dropped)


def streaming_notes(parts: Mapping[str, Sequence[Row]]) -> list[str]:
    """Sentences about streamed rows, for the user. The keys of `parts` name the rows."""
    return [
        f"{what}: {len(rows):,} rows are streamed: the step that takes a row tokenises it"
        for what, rows in parts.items()
        if isinstance(rows, StreamedRows)
    ]


def _plain(value: Any) -> Any:
    """A keyword of `render` as JSON."""
    if isinstance(value, Form):
        return [value.kind, value.family, value.name, value.answer]
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "special_tokens_map"):
        return tokenizer_key(value)
    return sorted(value) if isinstance(value, set | frozenset) else value
