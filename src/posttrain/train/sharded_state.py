"""The parts of a trainer's state that one rank holds, and how the parts of all ranks become a checkpoint.

If several ranks hold the same tensor (copies of the weights, or norms and biases of ranks that share matrices), one of
them writes it. The others have computed it on their own, from the same sums. Before a checkpoint is complete, their
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
"""The first rank's announcement of a checkpoint."""


def save_sharded(trainer: Trainer, state: Path, step: int, plain: Any) -> None:
    """Write a checkpoint: all ranks write their parts, then the first rank, which calls this, writes the index."""
    with trainer.ranks.together(SAVE, str(state), step):
        found = save_part(trainer, state, step)
    for one in found:  # after all are done, because a checkpoint that cannot be written must not end a rank
        if isinstance(one, Exception):
            raise one
    saved = [one for one in found if isinstance(one, _Saved)]
    _require_alike([one.repeated for one in saved], step)
    write_index(state, [one.written for one in saved], trainer.tensors(step), plain)


class _Saved(NamedTuple):
    """What one rank has saved."""

    written: dict[str, Any]
    """The rank's entries for the index."""
    repeated: dict[tuple[str, tuple[int, ...]], str]
    """Hashes of the parts that other ranks hold, too, by (name, corner)."""


def save_part(trainer: Trainer, state: Path, step: int) -> list[_Saved | Exception]:
    """Write this rank's parts. Returns what every rank has written, or the error that prevented it."""
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
    """All tensors of a tree, with names joined by "/"."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _tensors(value, f"{prefix}{name}/")
        else:
            yield prefix + name, value


def _parts(tensors: Mapping[str, Tensor], *, whole: bool) -> Iterator[tuple[str, Part]]:
    """This rank's part of each tensor, if it belongs to the first copy. `whole`: include unsharded tensors."""
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
    """Raise GuardStop if ranks that hold the same part of a tensor have different bits."""
    known: dict[tuple[str, tuple[int, ...]], tuple[int, str]] = {}
    for rank, found in enumerate(repeated):
        for part, bits in found.items():
            first, expected = known.setdefault(part, (rank, bits))
            if bits != expected:
                raise GuardStop(
                    given=f"step {step}: ranks {first} and {rank} hold the same part of {part[0]}, but its bits differ",
                    allowed="equal copies: each rank takes the same sums of gradients and computes the same update",
                    fix="Nothing was saved: `posttrain resume` continues from the previous checkpoint. If this "
                    "happens again, a device or a kernel is not deterministic.",
                )
