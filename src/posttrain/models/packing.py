"""From right-padded rows to one packed sequence of the tokens that are needed, and back.

B rows, T tokens of a padded row, L packed tokens, N scored positions, H heads, D width of a head.

A row is needed up to the token that predicts its last scored one; a row without any scored token is not needed at all.
Packed rows stand longest first, so that rows of similar length are neighbours: attention works on them in *buckets*,
short grids of equally long rows padded on the right, where causality alone keeps the padding out. Everything else
(embedding, projections, MLP, head) sees the L real tokens only.

To share a prompt among the completions of a group, the prompt becomes a packed row of its own, positions of the
completions go on after it, and a bucket's keys and values get the prompt's in front: `Packed` and `Bucket` are the only
records that have to know.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from posttrain.types import Tokens


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Which tokens go through the model, where they come from, and which of them predict a scored token."""

    lengths: tuple[int, ...]
    """Tokens of each packed row, longest first."""
    token_index_L: Tensor
    """Place of each packed token in the flattened `[B, T]` record."""
    position_ids_L: Tensor
    """Place of each packed token in its own row, counted from 0."""
    source_N: Tensor
    """Packed place that predicts scored token n: the token before it."""
    target_index_N: Tensor
    """Place of scored token n in the flattened `[B, T]` record."""

    @property
    def num_tokens(self) -> int:
        """Tokens that go through the model."""
        return sum(self.lengths)


def pack(tokens: Tokens, mask_BT: Tensor) -> Packed:
    """Pack the rows of which `mask_BT` scores at least one token. The shift by one is made here and nowhere else.

    Raises ValueError when the mask scores a first token (nothing precedes it) or a token past the end of its row.

    >>> tokens = Tokens(input_ids_BT=torch.tensor([[5, 6, 0], [7, 8, 9]]), lengths_B=torch.tensor([2, 3]))
    >>> packed = pack(tokens, torch.tensor([[False, True, False], [False, True, True]]))
    >>> packed.lengths, packed.token_index_L.tolist(), packed.source_N.tolist(), packed.target_index_N.tolist()
    ((2, 1), [3, 4, 0], [2, 0, 1], [1, 4, 5])
    """
    mask_BT = mask_BT.bool().cpu()
    _check(tokens, mask_BT)
    width = mask_BT.shape[1]
    needed_B = (mask_BT * torch.arange(width)).amax(dim=-1) if width else torch.zeros(len(mask_BT), dtype=torch.long)
    order_R = needed_B.argsort(descending=True, stable=True)[: int((needed_B > 0).sum())]
    lengths_R = needed_B[order_R]
    starts_R = lengths_R.cumsum(dim=0) - lengths_R
    position_ids_L = torch.arange(int(lengths_R.sum())) - starts_R.repeat_interleave(lengths_R)
    starts_B = torch.zeros_like(needed_B).index_copy(0, order_R, starts_R)
    target_index_N = mask_BT.flatten().nonzero()[:, 0]
    row_N, place_N = target_index_N // max(width, 1), target_index_N % max(width, 1)
    return Packed(
        lengths=tuple(lengths_R.tolist()),
        token_index_L=order_R.repeat_interleave(lengths_R) * width + position_ids_L,
        position_ids_L=position_ids_L,
        source_N=starts_B[row_N] + place_N - 1,
        target_index_N=target_index_N,
    )


def pack_whole(tokens: Tokens) -> Packed:
    """Pack every token of every row; `source_N` is the last one of each row, in the order of the rows.

    The last token is found from the length of the row, never by looking for a pad id (RULE 43). Raises ValueError for a
    row without tokens.

    >>> tokens = Tokens(input_ids_BT=torch.tensor([[5, 6, 0], [7, 8, 9]]), lengths_B=torch.tensor([2, 3]))
    >>> packed = pack_whole(tokens)
    >>> packed.lengths, packed.token_index_L.tolist(), packed.source_N.tolist()
    ((3, 2), [3, 4, 5, 0, 1], [4, 2])
    """
    lengths_B, width = tokens.lengths_B.cpu(), tokens.input_ids_BT.shape[1]
    if bool((lengths_B < 1).any()):
        raise ValueError(f"row {int(lengths_B.argmin())} has no tokens")
    order_R = lengths_B.argsort(descending=True, stable=True)
    lengths_R = lengths_B[order_R]
    ends_R = lengths_R.cumsum(dim=0)
    position_ids_L = torch.arange(int(lengths_R.sum())) - (ends_R - lengths_R).repeat_interleave(lengths_R)
    return Packed(
        lengths=tuple(lengths_R.tolist()),
        token_index_L=order_R.repeat_interleave(lengths_R) * width + position_ids_L,
        position_ids_L=position_ids_L,
        source_N=torch.zeros_like(lengths_B).index_copy(0, order_R, ends_R - 1),
        target_index_N=torch.arange(len(lengths_B)) * width + lengths_B - 1,
    )


def _check(tokens: Tokens, mask_BT: Tensor) -> None:
    if tokens.input_ids_BT.shape != mask_BT.shape:
        raise ValueError(f"mask {list(mask_BT.shape)} and input_ids {list(tokens.input_ids_BT.shape)} differ in shape")
    if mask_BT[:, :1].any():
        row = int(mask_BT[:, 0].nonzero()[0])
        raise ValueError(f"row {row} scores its first token, which has no log-probability: nothing precedes it")
    outside_BT = mask_BT & (torch.arange(mask_BT.shape[1]) >= tokens.lengths_B.cpu()[:, None])
    if outside_BT.any():
        row = int(outside_BT.nonzero()[0, 0])
        raise ValueError(f"row {row} scores a token past its end: it has {int(tokens.lengths_B[row])} real tokens")


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Neighbouring packed rows of similar length, which attention sees as a grid of `rows` x `longest` tokens."""

    start: int
    stop: int
    rows: int
    longest: int
    slots: Tensor | None
    """Place of each of the bucket's tokens in the flattened grid; None where all rows are equally long."""

    def spread(self, x_LK: Tensor) -> Tensor:
        """`[L, ...]` packed -> `[rows, longest, ...]`, zeros in the padding."""
        part_nK = x_LK[self.start : self.stop]
        if self.slots is not None:
            grid_shape = (self.rows * self.longest, *part_nK.shape[1:])
            part_nK = part_nK.new_zeros(grid_shape).index_copy(0, self.slots, part_nK)
        return part_nK.unflatten(0, (self.rows, self.longest))

    def collect(self, grid: Tensor) -> Tensor:
        """`[rows, longest, ...]` -> the bucket's packed tokens `[stop - start, ...]`."""
        flat = grid.flatten(0, 1)
        return flat if self.slots is None else flat.index_select(0, self.slots)


def make_buckets(lengths: tuple[int, ...], device: torch.device) -> tuple[Bucket, ...]:
    """Cut rows, longest first, into buckets whose grids waste little: a row joins while it is nearly as long.

    "Nearly" is three quarters of the longest (then at most a quarter of a grid is padding), or 16 tokens less, where a
    kernel call costs more than the padding.
    """
    starts = [0, *accumulate(lengths)]
    buckets, first = [], 0
    for row in range(1, len(lengths) + 1):
        if row < len(lengths) and lengths[row] >= min(0.75 * lengths[first], lengths[first] - 16):
            continue
        inside = torch.tensor(lengths[first:row])
        buckets.append(
            Bucket(
                start=starts[first],
                stop=starts[row],
                rows=row - first,
                longest=lengths[first],
                slots=_slots(inside).to(device) if inside[-1] < inside[0] else None,
            )
        )
        first = row
    return tuple(buckets)


def _slots(lengths_R: Tensor) -> Tensor:
    """Places of the real tokens in the flattened grid of rows of these lengths, longest first."""
    return (torch.arange(int(lengths_R[0])) < lengths_R[:, None]).flatten().nonzero()[:, 0]
