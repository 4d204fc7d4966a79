"""From right-padded rows to one packed sequence of the tokens that are needed, and back.

B rows, T tokens of a padded row, L packed tokens, S segments, N scored positions, H heads, D width of a head, R rows in
alphabetical order of their ids.

A row is needed up to the token that predicts its last scored one. A row without a scored token is not needed at all. If
rows begin alike (a *family*: completions of one prompt, the two answers of a pair, rows of data with one question),
their common prefix is packed once. The packed sequence consists of *segments*:

    trunks     the longest row of each family, whole, its prefix first; a row without a family is also a trunk
    branches   the tokens after the prefix in the other rows of a family; they attend to the prefix within the trunk

Trunks come longest first, then branches by family, longest first, so that segments of similar length are neighbours.
Attention works on them in *buckets*: short grids of segments of about equal length, padded on the right, where
causality alone hides the padding. Everything else (embedding, projections, MLP, head) sees only the L packed tokens.
`place_BT` gives the place of each hidden state. Several rows may read the same one, and its gradient is their sum.

In a causal model, a token's hidden state depends only on the tokens before it, so a common beginning needs to be
computed only once. It is found by comparing ids. The origin and the order of the rows do not matter.

Dropout of adapters is drawn once for a shared beginning. Each row sees the same distribution as it would alone, so the
mean gradient of a loss that is a sum over rows stays the same. Rows that a loss compares see the same draw for their
prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from posttrain.models.transfer import to_device
from posttrain.types import Tokens

LEAST_SAVING = 16
"""Minimum tokens that a family must save, because each family costs calls of attention in every layer."""


class Family(NamedTuple):
    """Rows that begin with the same `prefix` tokens, longest first; a single row has a prefix of 0."""

    rows: tuple[int, ...]
    prefix: int


def find_families(ids_BT: Tensor, needed_B: Tensor) -> list[Family]:
    """Return families that save the most together, so that every row with `needed_B` above 0 is in exactly one.

    A family of k rows with a prefix of p tokens saves (k - 1) p - LEAST_SAVING. Rows that begin alike are neighbours in
    alphabetical order, so families are cut from that order. A scan from left to right finds the best cut exactly, in
    R^2 additions.

    >>> import torch
    >>> ids_BT = torch.tensor([[*range(20), 7, 7], [5] * 22, [*range(20), 8, 0]])
    >>> find_families(ids_BT, torch.tensor([22, 9, 21]))
    [Family(rows=(0, 2), prefix=20), Family(rows=(1,), prefix=0)]
    """
    needed = needed_B.numpy()
    big_endian = ids_BT.cpu().numpy().astype(">i8")  # so that bytes sort like numbers
    rows = [row for row in range(len(needed)) if needed[row] > 0]
    rows.sort(key=lambda row: (big_endian[row, : needed[row]].tobytes(), row))
    if not rows:
        return []
    parts = _best_cut(_overlaps(big_endian, needed, rows))
    return [_family(rows[first:end], prefix, needed) for first, end, prefix in parts]


def alone(needed_B: Tensor) -> list[Family]:
    """Return the same rows without families."""
    return [Family((row,), 0) for row in needed_B.nonzero()[:, 0].tolist()]


def _family(rows: list[int], prefix: int, needed: np.ndarray) -> Family:
    return Family(tuple(sorted(rows, key=lambda row: (-needed[row], row))), prefix)


def _overlaps(ids: np.ndarray, needed: np.ndarray, rows: list[int]) -> list[int]:
    """Return how many tokens each row, from the second on, has in common with the row before it."""
    before, after = rows[:-1], rows[1:]
    limit = np.minimum(needed[before], needed[after])
    differs = (ids[before] != ids[after]) | (np.arange(ids.shape[1]) >= limit[:, None])
    return np.where(differs.any(axis=1), differs.argmax(axis=1), ids.shape[1]).tolist()


def _best_cut(overlaps: list[int]) -> list[tuple[int, int, int]]:
    """Return (first, end, prefix) of each part of R rows in order, so that the parts together save the most."""
    rows = len(overlaps) + 1
    saved, starts, prefixes = np.zeros(rows + 1, dtype=np.int64), [0] * (rows + 1), [0] * (rows + 1)
    common = np.zeros(rows, dtype=np.int64)  # [first]: common prefix of the rows from `first` to the present one
    for end in range(1, rows + 1):
        if end > 1:
            common[end - 2] = overlaps[end - 2]
            np.minimum(common[: end - 1], overlaps[end - 2], out=common[: end - 1])
        sizes = np.arange(end, 0, -1)
        gains = np.where(sizes > 1, (sizes - 1) * common[:end] - LEAST_SAVING, 0)
        starts[end] = end - 1 - int((saved[:end] + gains)[::-1].argmax())  # the smallest of equally good parts
        saved[end] = saved[starts[end]] + gains[starts[end]]
        prefixes[end] = int(common[starts[end]]) if end - starts[end] > 1 else 0
    parts, end = [], rows
    while end > 0:
        parts.append((starts[end], end, prefixes[end]))
        end = starts[end]
    return parts[::-1]


SHORTER = 32
"""Tokens by which a segment may always be shorter than the first of its grid. Padding them costs less than the kernel
calls for another grid. A training pass with 2.7M parameters is no faster with 48."""


class Segment(NamedTuple):
    """Neighbouring packed tokens of one row, and the packed tokens of the prefix before them."""

    start: int
    length: int
    prefix_start: int = 0
    prefix_length: int = 0


@dataclass(frozen=True, kw_only=True)
class Packed:
    """The tokens that go through the model, their origin, and the ones that predict a scored token."""

    segments: tuple[Segment, ...]
    """Segments in the order of the packed tokens."""
    token_index_L: Tensor
    """Index of each packed token in the flattened `[B, T]` record; for a shared one, in the longest row."""
    position_ids_L: Tensor
    """Position of each packed token in its own row, counted from 0."""
    place_BT: Tensor
    """Packed index of each needed token, -1 for the others."""
    source_N: Tensor
    """Packed index of the token that predicts scored token n: the token before it."""
    target_index_N: Tensor
    """Index of scored token n in the flattened `[B, T]` record."""
    num_real_tokens: int
    """Tokens that would go through the model if every row were computed separately."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens that go through the model."""
        return len(self.token_index_L)


def pack(tokens: Tokens, mask_BT: Tensor, *, share: bool = True) -> Packed:
    """Pack the rows in which `mask_BT` scores at least one token. The shift by one happens only here.

    With `share`, a common beginning of rows is packed once. Raises ValueError if the mask scores a first token (nothing
    precedes it) or a token past the end of its row.

    >>> tokens = Tokens(input_ids_BT=torch.tensor([[5, 6, 0], [7, 8, 9]]), lengths_B=torch.tensor([2, 3]))
    >>> packed = pack(tokens, torch.tensor([[False, True, False], [False, True, True]]))
    >>> packed.token_index_L.tolist(), packed.source_N.tolist(), packed.target_index_N.tolist()
    ([3, 4, 0], [2, 0, 1], [1, 4, 5])
    """
    mask_BT = mask_BT.bool().cpu()
    _check(tokens, mask_BT)
    target_index_N = mask_BT.flatten().nonzero()[:, 0]
    return _lay_out(tokens, needed_tokens(mask_BT), target_index_N - 1, target_index_N, share=share)


def pack_whole(tokens: Tokens, *, share: bool = True) -> Packed:
    """Pack every token of every row; `source_N` is the last token of each row, in the order of the rows.

    The length of the row gives the last token, never a search for a pad id (RULE 43). Raises ValueError for a row
    without tokens.

    >>> tokens = Tokens(input_ids_BT=torch.tensor([[5, 6, 0], [7, 8, 9]]), lengths_B=torch.tensor([2, 3]))
    >>> packed = pack_whole(tokens)
    >>> packed.token_index_L.tolist(), packed.source_N.tolist()
    ([3, 4, 5, 0, 1], [4, 2])
    """
    lengths_B, width = tokens.lengths_B.cpu(), tokens.input_ids_BT.shape[1]
    if bool((lengths_B < 1).any()):
        raise ValueError(f"row {int(lengths_B.argmin())} has no tokens")
    last_N = torch.arange(len(lengths_B)) * width + lengths_B - 1
    return _lay_out(tokens, lengths_B, last_N, last_N, share=share)


def needed_tokens(mask_BT: Tensor) -> Tensor:
    """Return `[B]`, on the CPU: how many tokens of each row go through the model, all before its last scored one."""
    mask_BT = mask_BT.bool().cpu()
    rows, width = mask_BT.shape
    return (mask_BT * torch.arange(width)).amax(dim=-1) if width else torch.zeros(rows, dtype=torch.long)


def _lay_out(
    tokens: Tokens, needed_B: Tensor, source_index_N: Tensor, target_index_N: Tensor, *, share: bool
) -> Packed:
    rows, width = tokens.input_ids_BT.shape
    families = find_families(tokens.input_ids_BT, needed_B) if share else alone(needed_B)
    segments, row_S, first_S = _cut(families, needed_B.tolist())
    length_S = torch.tensor([segment.length for segment in segments], dtype=torch.long)
    start_S = length_S.cumsum(dim=0) - length_S
    position_ids_L = torch.arange(int(length_S.sum())) + (first_S - start_S).repeat_interleave(length_S)
    token_index_L = (row_S * width).repeat_interleave(length_S) + position_ids_L
    place_BT = torch.full((rows * width,), -1)
    place_BT[token_index_L] = torch.arange(len(token_index_L))
    place_BT = place_BT.view(rows, width)
    for family in families:
        if family.prefix:
            trunk, *others = family.rows
            place_BT[others, : family.prefix] = place_BT[trunk, : family.prefix].clone()  # may be a whole row
    return Packed(
        segments=segments,
        token_index_L=token_index_L,
        position_ids_L=position_ids_L,
        place_BT=place_BT,
        source_N=place_BT.flatten()[source_index_N],
        target_index_N=target_index_N,
        num_real_tokens=int(needed_B.sum()),
    )


def _cut(families: list[Family], needed: list[int]) -> tuple[tuple[Segment, ...], Tensor, Tensor]:
    """Return the segments, the row of each, and the position of its first token in that row."""
    families = sorted(families, key=lambda family: -needed[family.rows[0]])
    cuts = [(family.rows[0], 0, 0) for family in families]
    starts = [0]
    for row, _, _ in cuts:
        starts.append(starts[-1] + needed[row])
    for family, trunk_start in zip(families, starts, strict=False):
        cuts += [(row, family.prefix, trunk_start) for row in family.rows[1:] if needed[row] > family.prefix]
    segments, start = [], 0
    for row, prefix, trunk_start in cuts:
        segments.append(Segment(start, needed[row] - prefix, trunk_start, prefix))
        start += needed[row] - prefix
    return (
        tuple(segments),
        torch.tensor([c[0] for c in cuts], dtype=torch.long),
        torch.tensor([c[1] for c in cuts], dtype=torch.long),
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
    """Neighbouring segments of similar length after the same prefix: a grid of `rows` x `longest` for attention."""

    start: int
    stop: int
    rows: int
    longest: int
    slots: Tensor | None
    """Index of each of the bucket's tokens in the flattened grid; None if all segments are equally long."""
    prefix_start: int = 0
    prefix_length: int = 0

    @property
    def prefix(self) -> slice:
        """The packed tokens that every row of the bucket sees before its own."""
        return slice(self.prefix_start, self.prefix_start + self.prefix_length)

    def spread(self, x_LK: Tensor) -> Tensor:
        """Convert `[L, ...]` packed to `[rows, longest, ...]`, with zeros in the padding."""
        part_nK = x_LK[self.start : self.stop]
        if self.slots is not None:
            grid_shape = (self.rows * self.longest, *part_nK.shape[1:])
            part_nK = part_nK.new_zeros(grid_shape).index_copy(0, self.slots, part_nK)
        return part_nK.unflatten(0, (self.rows, self.longest))

    def spread_after_prefix(self, x_LK: Tensor) -> Tensor:
        """Convert `[L, ...]` packed to `[rows, prefix_length + longest, ...]`: all that the rows of the grid see."""
        grid = self.spread(x_LK)
        if self.prefix_length == 0:
            return grid
        return torch.cat([x_LK[self.prefix].expand(self.rows, *[-1] * x_LK.dim()), grid], dim=1)

    def collect(self, grid: Tensor) -> Tensor:
        """Convert `[rows, longest, ...]` to the bucket's packed tokens `[stop - start, ...]`."""
        flat = grid.flatten(0, 1)
        return flat if self.slots is None else flat.index_select(0, self.slots)


def make_buckets(segments: Sequence[Segment], device: torch.device) -> tuple[Bucket, ...]:
    """Cut segments into buckets whose grids waste little. One joins if it is nearly as long and has the same prefix.

    "Nearly" is three quarters of the longest (then at most a quarter of a grid is padding), or `SHORTER` tokens less.
    """
    parts: list[list[Segment]] = []
    for segment in segments:
        first = parts[-1][0] if parts else None
        if (
            first is not None
            and (segment.prefix_length == 0 == first.prefix_length or segment[2:] == first[2:])
            and segment.length >= min(0.75 * first.length, first.length - SHORTER)
        ):
            parts[-1].append(segment)
        else:
            parts.append([segment])
    return tuple(_bucket(part, device) for part in parts)


def _bucket(part: list[Segment], device: torch.device) -> Bucket:
    first, last = part[0], part[-1]
    lengths = torch.tensor([segment.length for segment in part])
    return Bucket(
        start=first.start,
        stop=last.start + last.length,
        rows=len(part),
        longest=first.length,
        slots=to_device(_slots(lengths), device) if last.length < first.length else None,
        prefix_start=first.prefix_start,
        prefix_length=first.prefix_length,
    )


def _slots(lengths_R: Tensor) -> Tensor:
    """Return indices of the real tokens in the flattened grid of rows with these lengths, longest first."""
    return (torch.arange(int(lengths_R[0])) < lengths_R[:, None]).flatten().nonzero()[:, 0]
