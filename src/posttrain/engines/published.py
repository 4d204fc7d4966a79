"""Weights in memory that several processes share: two buffers in turn, so that one is read while the other is written.

Each buffer is a file without a name. It disappears when the last process has closed it, whatever the reason.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import psutil
import torch
from torch import Tensor

from posttrain.child import unnamed_memory
from posttrain.control_groups import memory_left
from posttrain.engines.delivery import digest
from posttrain.engines.sampler import Digest
from posttrain.errors import DoesNotFit, PublishError
from posttrain.models.footprint import PUBLICATIONS

_ALIGNED = 64


@dataclass(frozen=True)
class Place:
    """The dtype, shape and position of a tensor in a buffer."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int

    @property
    def end(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return self.start + count * self.dtype.itemsize


def layout(tensors: Mapping[str, tuple[str, Sequence[int]]]) -> dict[str, Place]:
    """Return positions of tensors one after the other, in the order of the names. Both sides compute the same.

    >>> layout({"a": ("float32", [3]), "b": ("bfloat16", [2, 2])})["b"]
    Place(dtype=torch.bfloat16, shape=(2, 2), start=64)
    """
    places, start = dict[str, Place](), 0
    for name, (dtype, shape) in tensors.items():
        places[name] = Place(getattr(torch, dtype), tuple(shape), start)
        start = -(-places[name].end // _ALIGNED) * _ALIGNED
    return places


def new_files() -> list[int]:
    """Return a file descriptor for each buffer."""
    return [unnamed_memory() for _ in range(PUBLICATIONS)]


class Publications(Protocol):
    """The last publications of weights, wherever they are stored."""

    def write(self, number: int, tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Digest]:
        """Add a publication in place of the one two before. Return the expected digests. See `Published.write`."""
        ...

    def read(self, number: int) -> Iterable[tuple[str, Tensor]]:
        """Return the tensors of one of the last two publications."""
        ...


class Published:
    """The buffers, for the writer and the readers. Implements `Publications`."""

    def __init__(self, files: Sequence[int], tensors: Mapping[str, tuple[str, Sequence[int]]], *, write: bool) -> None:
        """`files` are from `new_files`; `tensors` are the engine's tensors: dtype and shape by name."""
        self.places = layout(tensors)
        size = max([1, *(place.end for place in self.places.values())])
        if write:
            _make_room(files, size)
        access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
        self._maps = [mmap.mmap(file, size, access=access) for file in files]
        self._buffers = [_viewed(one) for one in self._maps]

    @torch.no_grad()
    def write(self, number: int, tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Digest]:
        """Write a publication, in the engines' precision; return the digests that they must find in it.

        Publication `number` goes into the buffer of publication `number - 2`. Raises PublishError if names differ.
        """
        given = dict[str, Digest]()
        for name, tensor in tensors:
            if name in self.places:
                view = self._view(number, name)
                view.copy_(tensor.detach())
                given[name] = digest(view)
        require_all(self.places, given)
        return given

    def read(self, number: int) -> Iterator[tuple[str, Tensor]]:
        """Return the tensors of a publication, as views of the buffer."""
        return ((name, self._view(number, name)) for name in self.places)

    def _view(self, number: int, name: str) -> Tensor:
        place = self.places[name]
        return self._buffers[number % PUBLICATIONS][place.start : place.end].view(place.dtype).view(place.shape)


def require_all(needed: Iterable[str], given: Collection[str]) -> None:
    """Raise PublishError if an engine decodes with tensors that are not published."""
    if missing := [name for name in needed if name not in given]:
        raise PublishError(
            given=f"an engine decodes with {missing[0]}, which the trained model does not have ({len(missing)} "
            "tensors)",
            allowed="engines that load the model that is trained",
            fix="Let every machine load the same folder, with the same versions of transformers and peft.",
        )


def _make_room(files: Sequence[int], size: int) -> None:
    """Set the size of the files, if memory suffices. The kernel allocates this memory on the first write, so a lack of
    it would kill some process later."""
    left = min([psutil.virtual_memory().available, *memory_left()])
    if len(files) * size > left:
        raise DoesNotFit(
            given=f"{len(files)} copies of the weights, {size / 2**30:.1f} GiB each, do not fit into the "
            f"remaining {left / 2**30:.1f} GiB of memory",
            allowed="room for two copies in addition to trainer and engines",
            fix="Set rollout.engines = 0 to sample in the trainer's process, or use a machine with more memory.",
        )
    for file in files:
        os.ftruncate(file, size)


def _viewed(memory: mmap.mmap) -> Tensor:
    """Return a tensor of bytes over the map. Nobody writes to a map that is read-only."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about a buffer that is not writable
        return torch.frombuffer(memory, dtype=torch.uint8)
