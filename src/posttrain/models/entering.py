"""The entry into a model whose weights may be sharded over several ranks, and access to one of its tensors as a whole.

A model in this process alone is simply called. A sharded model (sharding.py) has an entry: every pass through its body
and its head goes through one module, whose hooks gather the weights, on all ranks at the same time.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")


class Entry(Protocol):
    """The entry into a sharded model."""

    @property
    def device(self) -> torch.device:
        """The device on which it computes, wherever its parts are kept between passes."""
        ...

    def run(self, compute: Callable[[], T]) -> T:
        """Return the output of `compute`: one pass through each layer, on all ranks."""
        ...

    def holds(self, tensor: Tensor) -> bool:
        """Return whether the tensor is a parameter of this model, so that this rank has only a part of it."""
        ...

    def whole(self, parameter: Tensor) -> Tensor:
        """Return the whole parameter; `holds` must be true for it."""
        ...


_entries: dict[int, Entry] = {}
"""Entries by the identity of the model. A sharded model lives as long as its process."""


def set_entry(model: nn.Module, entry: Entry) -> None:
    _entries[id(model)] = entry


def is_sharded(model: nn.Module) -> bool:
    return id(model) in _entries


def computes_on(model: nn.Module) -> torch.device:
    """Return the device of the model's passes."""
    entry = _entries.get(id(model))
    return next(model.parameters()).device if entry is None else entry.device


def enter(model: nn.Module, compute: Callable[[], T]) -> T:
    """Return `compute()`, which makes one pass through the model."""
    entry = _entries.get(id(model))
    return compute() if entry is None else entry.run(compute)


def whole(tensor: Tensor) -> Tensor:
    """Return the tensor itself, or the whole of it if this rank holds a part."""
    return next((entry.whole(tensor) for entry in _entries.values() if entry.holds(tensor)), tensor)


def whole_copy(module: nn.Module) -> nn.Module:
    """Return a copy of a part of a model, with whole parameters of its own."""
    memo = {
        id(one): nn.Parameter(whole(one).detach(), requires_grad=one.requires_grad)
        for one in module.parameters()
        if is_part(one)
    }
    return copy.deepcopy(module, memo)


def is_part(tensor: Tensor) -> bool:
    """Return whether this rank holds only a part of the tensor."""
    return any(entry.holds(tensor) for entry in _entries.values())


def state_of(
    model: nn.Module, keep: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> Iterator[tuple[str, Tensor]]:
    """Yield the items of `state_dict`, whole, each stored by `keep`, one at a time. Tied ones are the same tensor."""
    state = model.state_dict(keep_vars=True)
    times, seen = Counter(map(id, state.values())), dict[int, Tensor]()
    for name, tensor in state.items():
        found = seen[id(tensor)] if id(tensor) in seen else keep(whole(tensor).detach())
        if times[id(tensor)] > 1:
            seen[id(tensor)] = found
        yield name, found
