"""The training state of a job of several ranks. Each rank writes its part of every tensor; any number of ranks can
read it.

    state/rank-00000.safetensors   parts of tensors: consecutive rows, or a block of rows and columns
    state/rank-00001.safetensors
    state/shards.json              shape of each tensor, the file of each of its parts, and the plain state

Nothing is pickled, and the checkpoint's manifest has the SHA-256 of each file. Readers load one whole tensor at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import combinations, starmap
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from posttrain.errors import CheckpointError
from posttrain.store.checkpoint import load_state

INDEX = "shards.json"


class Part(NamedTuple):
    """One rank's part of a tensor."""

    values: Tensor
    corner: tuple[int, ...]
    """Offset of the part in each dimension: first row, first column and so on; () for a scalar."""
    shape: list[int]
    """Shape of the whole tensor."""


def file_of(rank: int) -> str:
    return f"rank-{rank:05d}.safetensors"


def save_parts(folder: Path, rank: int, parts: Mapping[str, Part]) -> dict[str, Any]:
    """Write the parts of a rank, and return their entries for the index."""
    folder.mkdir(parents=True, exist_ok=True)
    held = {name: part for name, part in parts.items() if part.values.numel()}
    save_file({name: part.values.detach().cpu().contiguous() for name, part in held.items()}, folder / file_of(rank))
    return {name: {"shape": part.shape, "parts": [[file_of(rank), list(part.corner)]]} for name, part in held.items()}


def write_index(folder: Path, of_ranks: Iterable[Mapping[str, Any]], trees: Iterable[str], plain: Any) -> None:
    """Write the index after all ranks have written their parts. `trees` are the top-level names; some may be empty.

    Raises CheckpointError if a tensor has different shapes on two ranks.
    """
    tensors: dict[str, Any] = {}
    for found in of_ranks:
        for name, facts in found.items():
            known = tensors.setdefault(name, {"shape": facts["shape"], "parts": []})
            if known["shape"] != facts["shape"]:
                raise CheckpointError(
                    given=f"{name} has the shape {facts['shape']} on one rank and {known['shape']} on another",
                    allowed="ranks that train the same model",
                    fix="Start all ranks with the same config.",
                )
            known["parts"] += facts["parts"]
    (folder / INDEX).write_text(
        json.dumps({"tensors": tensors, "trees": list(trees), "plain": plain}), encoding="utf-8"
    )


def is_sharded(folder: Path) -> bool:
    return (folder / INDEX).is_file()


class Shards(Mapping[str, Tensor]):
    """The tensors of a state folder by name. Each is read on access."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            content = json.loads((folder / INDEX).read_text(encoding="utf-8"))
            self._tensors: dict[str, Any] = content["tensors"]
            self.plain, self.trees = content["plain"], frozenset(content["trees"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise _unreadable(folder, error) from error

    def __getitem__(self, name: str) -> Tensor:
        facts = self._tensors[name]
        try:
            with ExitStack() as opened:
                parts = [
                    (
                        _corner(where),
                        opened.enter_context(safe_open(self.folder / file, framework="pt")).get_tensor(name),
                    )
                    for file, where in facts["parts"]
                ]
                return _joined(parts, facts["shape"])
        except (OSError, SafetensorError, ValueError, LookupError, TypeError, RuntimeError) as error:
            raise _unreadable(self.folder, error, name) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def read_state(folder: Path) -> tuple[Mapping[str, Any], Any]:
    """Return (tree of tensors, plain value), sharded or not. In a sharded state, a tensor is read on access."""
    if not is_sharded(folder):
        return load_state(folder)
    shards = Shards(folder)
    return _Tree(shards, ""), shards.plain


class _Tree(Mapping[str, Any]):
    """A view of names with "/" as a tree."""

    def __init__(self, shards: Shards, prefix: str) -> None:
        self.shards, self.prefix = shards, prefix

    def _names(self) -> dict[str, bool]:
        """Return each name at this level, and whether it is a tensor."""
        below = (name.removeprefix(self.prefix) for name in self.shards if name.startswith(self.prefix))
        empty = {} if self.prefix else dict.fromkeys(self.shards.trees, False)
        return empty | {name.partition("/")[0]: "/" not in name for name in below}

    def __getitem__(self, name: str) -> Any:
        found = self._names()
        if name not in found:
            raise KeyError(name)
        return self.shards[self.prefix + name] if found[name] else _Tree(self.shards, f"{self.prefix}{name}/")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())


def _joined(parts: list[tuple[list[int], Tensor]], shape: list[int]) -> Tensor:
    """Return the whole tensor in new memory. Raises ValueError if a part is missing or two parts overlap."""
    whole = parts[0][1].new_empty(shape)
    boxes = [_box(corner, values, shape) for corner, values in parts]
    if sum(values.numel() for _, values in parts) != whole.numel() or any(starmap(_meet, combinations(boxes, 2))):
        raise ValueError(f"some of its {shape} numbers are in no file or in two")
    for box, (_, values) in zip(boxes, parts, strict=True):
        whole[box] = values
    return whole


def _corner(where: int | list[int]) -> list[int]:
    """Return the corner of a part. Earlier versions wrote only the first row, because parts were whole rows."""
    return [where] if isinstance(where, int) else where


def _box(corner: list[int], values: Tensor, shape: list[int]) -> tuple[slice, ...]:
    """Return the part as an index of the whole tensor. Raises ValueError if it is not inside the tensor."""
    starts = [*corner, *[0] * len(shape)][: len(shape)]
    ends = [start + size for start, size in zip(starts, values.shape, strict=True)]
    if any(not 0 <= start <= end <= most for start, end, most in zip(starts, ends, shape, strict=True)):
        raise ValueError(f"a part of {list(values.shape)} numbers at {starts} is outside of {shape}")
    return tuple(map(slice, starts, ends))


def _meet(one: tuple[slice, ...], other: tuple[slice, ...]) -> bool:
    return all(a.start < b.stop and b.start < a.stop for a, b in zip(one, other, strict=True))


def _unreadable(folder: Path, error: Exception, name: str = "") -> CheckpointError:
    return CheckpointError(
        given=f"{folder} holds no training state that can be read ({f'{name}: ' if name else ''}{error})",
        allowed=f"a folder with {INDEX} and the files that it names, as written by the run",
        fix="Resume the run folder that wrote it; a model folder alone can be trained on, but not resumed.",
    )
