"""How a model is entered whose weights may lie in parts on several ranks, and how one of its tensors is seen whole.

A model in this process alone is just called. A sharded one (sharding.py) has an entry: every pass through its body and
its head goes through one module, whose hooks bring the weights together, on all ranks at the same time.
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
        """On which it computes, wherever its parts lie between passes."""
        ...

    def run(self, compute: Callable[[], T]) -> T:
        """The output of `compute`: one pass through each layer, on all ranks."""
        ...

    def holds(self, tensor: Tensor) -> bool:
        """Is it a parameter of this model, of which this rank has a part?"""
        ...

    def whole(self, parameter: Tensor) -> Tensor:
        """All of one that it holds."""
        ...


_entries: dict[int, Entry] = {}
"""By the identity of the model; a sharded one lives as long as its process."""


def set_entry(model: nn.Module, entry: Entry) -> None:
    _entries[id(model)] = entry


def is_sharded(model: nn.Module) -> bool:
    return id(model) in _entries


def computes_on(model: nn.Module) -> torch.device:
    """The device of its passes."""
    entry = _entries.get(id(model))
    return next(model.parameters()).device if entry is None else entry.device


def enter(model: nn.Module, compute: Callable[[], T]) -> T:
    """`compute()`, which makes one pass through the model."""
    entry = _entries.get(id(model))
    return compute() if entry is None else entry.run(compute)


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself, or all of it where this rank holds a part of it."""
    return next((entry.whole(tensor) for entry in _entries.values() if entry.holds(tensor)), tensor)


def whole_copy(module: nn.Module) -> nn.Module:
    """A copy of a part of a model, with parameters of its own, each whole."""
    memo = {
        id(one): nn.Parameter(whole(one).detach(), requires_grad=one.requires_grad)
        for one in module.parameters()
        if is_part(one)
    }
    return copy.deepcopy(module, memo)


def is_part(tensor: Tensor) -> bool:
    """Whether this rank holds a part of it only."""
    return any(entry.holds(tensor) for entry in _entries.values())


def state_of(
    model: nn.Module, keep: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> Iterator[tuple[str, Tensor]]:
    """The items of `state_dict`, each whole, as `keep` keeps it, one at a time. Tied ones are one tensor."""
    state = model.state_dict(keep_vars=True)
    times, seen = Counter(map(id, state.values())), dict[int, Tensor]()
    for name, tensor in state.items():
        found = seen[id(tensor)] if id(tensor) in seen else keep(whole(tensor).detach())
        if times[id(tensor)] > 1:
            seen[id(tensor)] = found
        yield name, found
