"""Data larger than memory: rows that are read whenever they are asked for, and what they render to, kept on disk.

A row is read twice in all: once to count, and to find what is broken before a model is loaded; once to be rendered.
What comes of that lies in a store (store.py) in the cache folder, under a key of everything that it depends on: a run
that resumes, or another run on the same data, finds it ready.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
import tokenizers
import transformers

from posttrain.cache import cache_folder
from posttrain.data.dropped import Dropped
from posttrain.data.forms import Form
from posttrain.data.prompts import Renderer
from posttrain.data.read import Row, content_key, iter_rows
from posttrain.data.store import open_store, write_store
from posttrain.errors import DataError

STREAMED_FROM = 200_000_000
"""Bytes of text from which on `data.streaming: auto` streams: in memory they would take some ten times as much."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Source:
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

    def __init__(self, source: Source, *, key: str, columns: list[str], kept_N: np.ndarray) -> None:
        self.source, self.key, self.columns, self.kept_N = source, key, columns, kept_N
        self.size = int(kept_N.sum())

    @staticmethod
    def open(source: Source) -> StreamedRows:
        """Counted, by reading all of it where no earlier run has. Raises `DataError` for a row that cannot be read."""
        key = source.key()
        file = cache_folder("data") / f"{key}.json"
        try:
            known = json.loads(file.read_text(encoding="utf-8"))
            count, columns = int(known["rows"]), list(known["columns"])
        except (OSError, ValueError, KeyError, TypeError):
            count, columns = _count(source.rows())
            _remember(file, {"rows": count, "columns": columns})
        return StreamedRows(source, key=key, columns=columns, kept_N=np.ones(count, dtype=np.bool_))

    def where(self, wanted_N: np.ndarray) -> StreamedRows:
        """The rows at the True places; `wanted_N` has an entry for each of these rows."""
        kept_N = self.kept_N.copy()
        kept_N[kept_N] = wanted_N
        return StreamedRows(self.source, key=self.key, columns=self.columns, kept_N=kept_N)

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


def streaming_notes(parts: Mapping[str, Sequence[Row]]) -> list[str]:
    """What the user should know before a long silence; `parts` are rows under what they are."""
    return [
        f"{what}: {len(rows):,} rows are streamed; examples, pairs and labelled answers, once tokenised, are kept in "
        f"{cache_folder('data')}"
        for what, rows in parts.items()
        if isinstance(rows, StreamedRows)
    ]


# --- what a store depends on ------------------------------------------------------------------------------------------


def _key(rows: StreamedRows, render: partial[Any]) -> str:
    """Changes with the rows, with what renders them and its settings, and with the versions of all code involved."""
    digest = hashlib.sha256(f"{rows.key} {transformers.__version__} {tokenizers.__version__} {_code()}".encode())
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
        return [_tokenizer_key(value.tokenizer), others]
    return sorted(value) if isinstance(value, set | frozenset) else value


def _tokenizer_key(tokenizer: Any) -> list[Any]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    known = [type(tokenizer).__qualname__, tokenizer.special_tokens_map, tokenizer.chat_template]
    return [hashlib.sha256(content.encode()).hexdigest(), *known]


@cache
def _code() -> str:
    """Hash of the modules that read and render."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _count(rows: Iterator[Row]) -> tuple[int, list[str]]:
    """How many rows there are, and all their columns."""
    count, columns = 0, dict[str, None]()
    for row in rows:
        count += 1
        columns.update(dict.fromkeys(row.values))
    return count, list(columns)


def _remember(file: Path, content: dict[str, Any]) -> None:
    """For the next run; where it cannot be written, that one counts again."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_suffix(f".{os.getpid()}.part")
        draft.write_text(json.dumps(content), encoding="utf-8")
        draft.replace(file)
    except OSError:
        return
