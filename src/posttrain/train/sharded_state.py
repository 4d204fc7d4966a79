"""The parts of a trainer's state that one rank holds, and how all of them become a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.tensor import DTensor

from posttrain.models.layout import corner, in_first_copy
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
    write_index(state, [one for one in found if isinstance(one, dict)], trainer.tensors(step), plain)


def save_part(trainer: Trainer, state: Path, step: int) -> list[dict[str, Any] | Exception]:
    """Write what this rank holds; returns what all ranks have written, or what kept them from it."""
    ranks = trainer.ranks
    parts = dict(_parts(trainer.tensors(step), "", whole=ranks.rank == 0))
    try:
        found: dict[str, Any] | Exception = save_parts(state, ranks.rank, parts)
    except OSError as error:
        found = error
    except SafetensorError as error:
        found = OSError(str(error))
    return ranks.gather(found)


def _parts(tree: Mapping[str, Any], prefix: str, *, whole: bool) -> Iterator[tuple[str, Part]]:
    """Of each tensor by its name with "/": this rank's part, if it is of the first copy. `whole`: tensors that are not
    sharded, too."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _parts(value, f"{prefix}{name}/", whole=whole)
        elif isinstance(value, DTensor):
            if not in_first_copy(value):
                continue
            yield prefix + name, Part(value.to_local(), corner(value), list(value.shape))
        elif whole:
            assert isinstance(value, Tensor)
            yield prefix + name, Part(value, (0,) * value.dim(), list(value.shape))
