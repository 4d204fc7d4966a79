"""Data larger than memory: rows that are read whenever they are asked for, and what they render to, kept on disk.

A row is read twice in all: once to count, and to find what is broken before a model is loaded; once to be rendered.
What comes of that lies in a store (store.py) in the cache folder, under a key of everything that it depends on: a run
that resumes, or another run on the same data, finds it ready.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np
import tokenizers
import transformers

from posttrain.cache import cache_folder, code_key, tokenizer_key
from posttrain.data.dropped import Dropped
from posttrain.data.forms import Form
from posttrain.data.prompts import Renderer
from posttrain.data.read import Row, content_key, iter_rows
from posttrain.data.sampled_pairs import is_sampled_pair
from posttrain.data.store import open_store, write_store
from posttrain.errors import DataError, DoesNotFit
from posttrain.files import write_atomically

STREAMED_FROM = 200_000_000
"""Bytes of text from which on `data.streaming: auto` streams: in memory they would take some ten times as much."""
ON_DISK = ("examples", "pairs", "labels")
"""Kinds of data that are kept on disk once they are tokenised, if their rows are streamed; others are in memory."""

CODE = "data/*.py"
"""The modules that read and render."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RowSource:
    """What `iter_rows` is asked for."""

    paths: tuple[str, ...]
    split: str
    max_rows: int | None
    seed: int

    def rows(self) -> Iterator[Row]:
        return iter_rows(self.paths, split=self.split, max_rows=self.max_rows, seed=self.seed)

    def key(self) -> str:
        return content_key(self.paths, split=self.split, max_rows=self.max_rows, seed=self.seed)


class StreamedRows(Sequence[Row]):
    """The rows of a source, or those of them that `kept_N` marks, read anew by every loop over them.

    A slice reads nothing; a single row costs reading all rows before it.
    """

    def __init__(
        self, source: RowSource, *, key: str, columns: list[str], kept_N: np.ndarray, sampled_N: np.ndarray
    ) -> None:
        """`sampled_N` marks the pairs that an earlier run sampled; like `kept_N`, among all rows of the source."""
        self.source, self.key, self.columns, self.kept_N, self._sampled_N = source, key, columns, kept_N, sampled_N
        self.size = int(kept_N.sum())

    @staticmethod
    def open(source: RowSource) -> StreamedRows:
        """Counted, by reading all of it where no earlier run has. Raises `DataError` for a row that cannot be read."""
        key = source.key()
        file = cache_folder("data") / f"{key}.json"
        try:
            counted = Counted.from_json(json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError):
            counted = Counted.of(source.rows())
            _remember(file, counted.to_json())
        return StreamedRows(
            source,
            key=key,
            columns=counted.columns,
            kept_N=np.ones(len(counted.sampled_N), dtype=np.bool_),
            sampled_N=counted.sampled_N,
        )

    @property
    def sampled_N(self) -> np.ndarray:
        """True for the pairs that an earlier run sampled, with an entry for each of these rows."""
        return self._sampled_N[self.kept_N]

    def where(self, wanted_N: np.ndarray) -> StreamedRows:
        """The rows at the True places; `wanted_N` has an entry for each of these rows."""
        kept_N = self.kept_N.copy()
        kept_N[kept_N] = wanted_N
        return StreamedRows(self.source, key=self.key, columns=self.columns, kept_N=kept_N, sampled_N=self._sampled_N)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Row]:
        place = -1
        for place, row in enumerate(self.source.rows()):
            if place >= len(self.kept_N):
                raise self._changed()
            if self.kept_N[place]:
                yield row
        if place + 1 != len(self.kept_N):
            raise self._changed()

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> StreamedRows: ...
    def __getitem__(self, place: int | slice) -> Row | StreamedRows:
        chosen = range(len(self))[place]
        if isinstance(chosen, int):
            return next(islice(self, chosen, None))
        wanted_N = np.zeros(len(self), dtype=np.bool_)
        wanted_N[np.asarray(chosen, dtype=np.int64)] = True
        return self.where(wanted_N)

    def _changed(self) -> DataError:
        return DataError(
            given=f"{', '.join(self.source.paths)} no longer has the {len(self.kept_N)} rows that were counted",
            allowed="data that stays as it is while it is read",
            fix="Start again when the data is complete.",
        )


def collect(
    rows: Sequence[Row], render: partial[T | Dropped], record: type[T]
) -> tuple[Sequence[T], Sequence[Dropped]]:
    """`render(row, index)` of all rows: the records, and what was left out; on disk where the rows are streamed.

    What rendering depends on stands in the keywords of `render`. Raises `DoesNotFit` where the disk is full.
    """
    found = (render(row, index) for index, row in enumerate(rows))
    if not isinstance(rows, StreamedRows):
        everything = list(found)
        usable = tuple(one for one in everything if isinstance(one, record))
        return usable, tuple(one for one in everything if isinstance(one, Dropped))
    folder = cache_folder("data") / _key(rows, render)
    stored = open_store(folder, record)
    if stored is None:
        write_store(folder, record, found)
        stored = open_store(folder, record)
        assert stored is not None, f"{folder} cannot be read back"
    return stored


def streaming_notes(parts: Mapping[str, Sequence[Row]], kind: str) -> list[str]:
    """What the user should know before a long silence; `parts` are rows under what they are, `kind` what they hold."""
    where = str(cache_folder("data")) if kind in ON_DISK else "memory"
    return [
        f"{what}: {len(rows):,} rows are streamed; {kind}, once tokenised, are kept in {where}"
        for what, rows in parts.items()
        if isinstance(rows, StreamedRows)
    ]


# --- what a store depends on ------------------------------------------------------------------------------------------


def _key(rows: StreamedRows, render: partial[Any]) -> str:
    """Changes with the rows, with what renders them and its settings, and with the versions of all code involved."""
    versions = f"{transformers.__version__} {tokenizers.__version__} {code_key(CODE)}"
    digest = hashlib.sha256(f"{rows.key} {versions}".encode())
    digest.update(np.packbits(rows.kept_N).tobytes())
    settings = {name: _plain(value) for name, value in render.keywords.items()}
    digest.update(json.dumps([render.func.__qualname__, settings], sort_keys=True, default=str).encode())
    return digest.hexdigest()[:32]


def _plain(value: Any) -> Any:
    """A setting of a rendering as JSON."""
    if isinstance(value, Form):
        return [value.kind, value.family, value.name, value.answer]
    if isinstance(value, Renderer):
        others = {f.name: getattr(value, f.name) for f in fields(value) if f.name != "tokenizer"}
        return [tokenizer_key(value.tokenizer), others]
    return sorted(value) if isinstance(value, set | frozenset) else value


class Counted(NamedTuple):
    """What one pass over all rows finds."""

    columns: list[str]
    """Of any row."""
    sampled_N: np.ndarray
    """Which rows are pairs that an earlier run sampled."""

    @staticmethod
    def of(rows: Iterator[Row]) -> Counted:
        columns, sampled = dict[str, None](), bytearray()
        for row in rows:
            columns.update(dict.fromkeys(row.values))
            sampled.append(is_sampled_pair(row))
        return Counted(list(columns), np.frombuffer(sampled, dtype=np.bool_))

    def to_json(self) -> dict[str, Any]:
        marks = np.packbits(self.sampled_N).tobytes().hex() if self.sampled_N.any() else ""
        return {"rows": len(self.sampled_N), "columns": self.columns, "sampled": marks}

    @staticmethod
    def from_json(known: Mapping[str, Any]) -> Counted:
        rows, marks = int(known["rows"]), np.frombuffer(bytes.fromhex(known["sampled"]), dtype=np.uint8)
        sampled_N = np.unpackbits(marks, count=rows) if len(marks) else np.zeros(rows)
        return Counted(list(known["columns"]), sampled_N.astype(np.bool_))


def _remember(file: Path, content: dict[str, Any]) -> None:
    """For the next run; where it cannot be written, that one counts again."""
    with suppress(OSError, DoesNotFit):
        write_atomically(file, json.dumps(content))
