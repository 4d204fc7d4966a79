"""Tokenised rows on disk, read through the memory map of the operating system: a `Sequence` that takes no memory.

A store is a folder with flat files, written once and never changed:

    ids.i32    the ids of all token sequences, one behind the other       mask.u8      1 where an id is trained
    ends.i64   where each sequence ends                                   rows.i64     the dataset row of each record
    numbers.f64   the number of each record (margin, label, score; NaN: none)
    dropped.jsonl   what was left out: origin and reason                  seal.json    size and SHA-256 of each file

A record has one sequence, or two for a pair. The folder is written under another name and renamed when it is complete,
so a store that exists was finished; the seal tells one that was damaged later.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import shutil
import uuid
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Generic, TypeVar, overload

import numpy as np

from posttrain.data.dropped import Dropped
from posttrain.errors import DoesNotFit
from posttrain.types import Example, LabelledExample, Pair

FORMAT = 1
FILES = {
    "ids.i32": np.int32,
    "mask.u8": np.bool_,
    "ends.i64": np.int64,
    "rows.i64": np.int64,
    "numbers.f64": np.float64,
}
DROPPED, SEAL, LOCK = "dropped.jsonl", "seal.json", "lock"

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Layout(Generic[T]):
    """How a record is taken apart into token sequences and a number, and put together again."""

    name: str
    sequences: int
    take_apart: Callable[[T], tuple[tuple[Example, ...], float | None]]
    put_together: Callable[[int, tuple[Example, ...], float | None], T]


LAYOUTS: dict[type, Layout[Any]] = {
    Example: Layout(
        name="example",
        sequences=1,
        take_apart=lambda example: ((example,), None),
        put_together=lambda index, sides, number: sides[0],
    ),
    Pair: Layout(
        name="pair",
        sequences=2,
        take_apart=lambda pair: ((pair.chosen, pair.rejected), pair.margin),
        put_together=lambda index, sides, number: Pair(index=index, chosen=sides[0], rejected=sides[1], margin=number),
    ),
    LabelledExample: Layout(
        name="labelled example",
        sequences=1,
        take_apart=lambda labelled: ((labelled.example,), float(labelled.label)),
        put_together=lambda index, sides, number: LabelledExample(index=index, example=sides[0], label=number == 1.0),
    ),
}


class Stored(Sequence[T]):
    """The records of a store. Reading one touches its own pages of the disk and no others."""

    def __init__(self, folder: Path, layout: Layout[T]) -> None:
        self.folder, self.layout = folder, layout
        self.ids, self.mask, self.ends, self.rows, self.numbers = (
            _mapped(folder / name, dtype) for name, dtype in FILES.items()
        )

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[T]: ...
    def __getitem__(self, place: int | slice) -> T | Sequence[T]:
        if isinstance(place, slice):
            return tuple(self[one] for one in range(*place.indices(len(self))))
        if not -len(self) <= place < len(self):
            raise IndexError(f"record {place} of {len(self)}")
        place %= len(self)
        index, number, first = int(self.rows[place]), float(self.numbers[place]), place * self.layout.sequences
        sides = tuple(self._sequence(index, first + side) for side in range(self.layout.sequences))
        return self.layout.put_together(index, sides, None if math.isnan(number) else number)

    def _sequence(self, index: int, place: int) -> Example:
        begin, end = (int(self.ends[place - 1]) if place else 0), int(self.ends[place])
        return Example(
            index=index,
            input_ids=tuple(self.ids[begin:end].tolist()),
            completion_mask=tuple(self.mask[begin:end].tolist()),
        )


class StoredDropped(Sequence[Dropped]):
    """What was left out, read from the file whenever it is asked for."""

    def __init__(self, folder: Path, count: int) -> None:
        self.file, self.size = folder / DROPPED, count

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Dropped]:
        with self.file.open(encoding="utf-8") as lines:
            for line in lines:
                yield Dropped(*json.loads(line))

    @overload
    def __getitem__(self, place: int) -> Dropped: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Dropped]: ...
    def __getitem__(self, place: int | slice) -> Dropped | Sequence[Dropped]:
        chosen = range(self.size)[place]
        if isinstance(chosen, int):
            return next(islice(self, chosen, None))
        return [dropped for number, dropped in enumerate(self) if number in chosen]


def open_store(folder: Path, record: type[T]) -> tuple[Stored[T], StoredDropped] | None:
    """The store in the folder; None where there is none, or one that is damaged or of another kind."""
    layout = LAYOUTS[record]
    try:
        seal = json.loads((folder / SEAL).read_text(encoding="utf-8"))
        whole = (seal["format"], seal["record"]) == (FORMAT, layout.name) and all(
            _sealed(folder / name) == seal["files"][name] for name in (*FILES, DROPPED)
        )
        return (Stored(folder, layout), StoredDropped(folder, seal["dropped"])) if whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_store(folder: Path, record: type[T], found: Iterator[T | Dropped]) -> None:
    """Write a store of what comes, in its order. Raises `DoesNotFit` where there is no room.

    Whatever ends the writing, also a kill, leaves no folder of that name behind that is not complete. What earlier
    kills left under other names is removed.
    """
    draft = folder.with_name(f"{folder.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(folder)
        draft.mkdir()
        with (draft / LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # as long as this process lives
            _write(draft, LAYOUTS[record], found)
            _put_in_place(draft, folder, record)
    except OSError as error:
        raise _no_room(draft, error) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write(draft: Path, layout: Layout[T], found: Iterator[T | Dropped]) -> None:
    dropped, place = 0, 0
    with _Files(draft) as files:
        for one in found:
            if isinstance(one, Dropped):
                files.write(DROPPED, json.dumps(one).encode() + b"\n")
                dropped += 1
                continue
            sides, number = layout.take_apart(one)
            for side in sides:
                place += len(side.input_ids)
                files.write("ids.i32", array("i", side.input_ids).tobytes())
                files.write("mask.u8", bytes(side.completion_mask))
                files.write("ends.i64", array("q", [place]).tobytes())
            files.write("rows.i64", array("q", [sides[0].index]).tobytes())
            files.write("numbers.f64", array("d", [math.nan if number is None else number]).tobytes())
    seal = {
        "format": FORMAT,
        "record": layout.name,
        "dropped": dropped,
        "files": {name: _sealed(draft / name) for name in (*FILES, DROPPED)},
    }
    (draft / SEAL).write_text(json.dumps(seal, indent=1), encoding="utf-8")


class _Files:
    """The files of a store that is being written."""

    def __init__(self, folder: Path) -> None:
        self.open: dict[str, IO[bytes]] = {name: (folder / name).open("wb") for name in (*FILES, DROPPED)}

    def write(self, name: str, content: bytes) -> None:
        self.open[name].write(content)

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self.open.values():
            with file:
                file.flush()
                os.fsync(file.fileno())


def _put_in_place(draft: Path, folder: Path, record: type) -> None:
    """Rename; a store that another process finished meanwhile stays, a damaged one goes."""
    try:
        draft.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        if open_store(folder, record) is None:
            damaged = folder.with_name(f"{draft.name}.damaged.part")
            folder.rename(damaged)
            draft.rename(folder)
            shutil.rmtree(damaged, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    """Drafts of this store whose writer does not live any more: their lock can be had."""
    for draft in folder.parent.glob(f"{folder.name}.*.part"):
        try:
            with (draft / LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(draft, ignore_errors=True)
        except OSError:
            continue  # another process writes it, or has just removed it


def _no_room(draft: Path, error: OSError) -> DoesNotFit:
    written = sum(file.stat().st_size for file in draft.glob("*"))
    return DoesNotFit(
        given=f"tokenised data cannot be written to {draft.parent} after {written / 1e6:,.1f} MB ({error.strerror})",
        allowed="a folder that can be written, with room for about five bytes per token",
        fix="Make room, name another folder in the environment variable POSTTRAIN_CACHE, or set "
        "data.streaming = false if the data fits into memory.",
    )


def _sealed(file: Path) -> list[int | str]:
    with file.open("rb") as content:
        return [file.stat().st_size, hashlib.file_digest(content, "sha256").hexdigest()]


def _mapped(file: Path, dtype: Any) -> np.ndarray:
    return np.memmap(file, dtype=dtype, mode="r") if file.stat().st_size else np.zeros(0, dtype=dtype)
