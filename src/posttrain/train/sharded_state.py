"""The parts of a trainer's state that one rank holds, and how all of them become a checkpoint.

What several ranks hold (copies of the weights, and norms and biases of neighbours that divide matrices) is written by
one of them. The others have computed it by themselves, from the same sums: before a checkpoint becomes whole, their
bits are compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.tensor import DTensor

from posttrain.errors import GuardStop
from posttrain.models.layout import corner, in_first_copy, is_repeated
from posttrain.store.shards import Part, save_parts, write_index

if TYPE_CHECKING:
    from posttrain.train.trainer import Trainer

SAVE = "save"
"""What the first rank announces."""


def save_sharded(trainer: Trainer, state: Path, step: int, plain: Any) -> None:
    """Called by the first rank: all ranks write their parts, then the index."""
    with trainer.ranks.together(SAVE, str(state), step):
        found = save_part(trainer, state, step)
    for one in found:  # after all are done: a checkpoint that cannot be written ends no rank
        if isinstance(one, Exception):
            raise one
    saved = [one for one in found if isinstance(one, _Saved)]
    _require_alike([one.repeated for one in saved], step)
    write_index(state, [one.written for one in saved], trainer.tensors(step), plain)


class _Saved(NamedTuple):
    """Of one rank."""

    written: dict[str, Any]
    """For the index."""
    repeated: dict[tuple[str, tuple[int, ...]], str]
    """Of what other ranks hold, too: by its name and its corner, a hash of its bits."""


def save_part(trainer: Trainer, state: Path, step: int) -> list[_Saved | Exception]:
    """Write what this rank holds; returns what all ranks have written, or what kept them from it."""
    ranks, tensors = trainer.ranks, dict(_tensors(trainer.tensors(step), ""))
    parts = dict(_parts(tensors, whole=ranks.rank == 0))
    try:
        found: _Saved | Exception = _Saved(save_parts(state, ranks.rank, parts), dict(_repeated(tensors)))
    except OSError as error:
        found = error
    except SafetensorError as error:
        found = OSError(str(error))
    return ranks.gather(found)


def _tensors(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Tensor]]:
    """By their names with "/"."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _tensors(value, f"{prefix}{name}/")
        else:
            yield prefix + name, value


def _parts(tensors: Mapping[str, Tensor], *, whole: bool) -> Iterator[tuple[str, Part]]:
    """Of each tensor this rank's part, if it is of the first copy. `whole`: tensors that are not sharded, too."""
    for name, value in tensors.items():
        if isinstance(value, DTensor):
            if in_first_copy(value):
                yield name, Part(value.to_local(), corner(value), list(value.shape))
        elif whole:
            yield name, Part(value, (0,) * value.dim(), list(value.shape))


def _repeated(tensors: Mapping[str, Tensor]) -> Iterator[tuple[tuple[str, tuple[int, ...]], str]]:
    for name, value in tensors.items():
        if isinstance(value, DTensor) and is_repeated(value) and value.to_local().numel():
            bits = value.to_local().detach().cpu().reshape(-1).view(torch.uint8).numpy().data
            yield (name, corner(value)), hashlib.sha256(bits).hexdigest()


def _require_alike(repeated: Sequence[Mapping[tuple[str, tuple[int, ...]], str]], step: int) -> None:
    """Raise GuardStop where ranks that hold the same part of a tensor have other bits of it."""
    known: dict[tuple[str, tuple[int, ...]], tuple[int, str]] = {}
    for rank, found in enumerate(repeated):
        for part, bits in found.items():
            first, expected = known.setdefault(part, (rank, bits))
            if bits != expected:
                raise GuardStop(
                    given=f"step {step}: ranks {first} and {rank} hold the same part of {part[0]}, and its bits differ",
                    allowed="copies that stay equal: each rank takes the same sums of gradients, and computes the same",
                    fix="Nothing was saved: `posttrain resume` continues from the previous checkpoint. If this "
                    "happens again, a device or a kernel is not deterministic.",
                )
