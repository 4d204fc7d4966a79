"""Rows with several contexts, as the separate sequences that a model sees, and back.

If a chat template rewrites history, a completion of several turns is one row for every algorithm but several sequences
for the model. `[B, T]` is cut at `Tokens.starts_BT`, and the results for the parts are put back in their places.
B rows, T tokens of a padded row; S parts, U tokens of a padded part.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from posttrain.models.packing import needed_tokens
from posttrain.models.transfer import to_device
from posttrain.types import Outputs, Tokens


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of rows in which something is scored."""

    tokens: Tokens
    """Parts `[S, U]`, in the order of the rows and of the positions in them."""
    mask_SU: Tensor
    rows_S: Tensor
    """Row index of each part."""
    places_N: Tensor
    """Index of each token of the parts in the flattened `[B, T]` record."""
    shape: torch.Size

    def joined(self, x_SU: Tensor) -> Tensor:
        """Convert `[S, U]` to `[B, T]`, 0 where there is no part."""
        inside_SU = torch.arange(x_SU.shape[1]) < self.tokens.lengths_B[:, None]
        inside_N = to_device(inside_SU.flatten().nonzero()[:, 0], x_SU.device)
        flat = x_SU.new_zeros(self.shape.numel())
        found_N = x_SU.flatten().index_select(0, inside_N)
        return flat.index_copy(0, to_device(self.places_N, x_SU.device), found_N).view(self.shape)

    def outputs(self, found: Outputs) -> Outputs:
        """Convert all fields of the outputs in the same way."""
        return found.each(self.joined)


def cut(tokens: Tokens, mask_BT: Tensor) -> Parts:
    """Return the parts of these rows, without parts in which `mask_BT` scores nothing.

    >>> ids_BT = torch.tensor([[5, 6, 7, 8, 9]])
    >>> tokens = Tokens(input_ids_BT=ids_BT, lengths_B=torch.tensor([5]), starts_BT=ids_BT == 7)
    >>> parts = cut(tokens, ids_BT >= 8)
    >>> parts.tokens.input_ids_BT.tolist(), parts.joined(parts.tokens.input_ids_BT).tolist()
    ([[7, 8, 9]], [[0, 0, 7, 8, 9]])
    """
    assert tokens.starts_BT is not None, "only rows with several contexts are cut"
    found: list[tuple[int, int, int]] = []
    for row, length in enumerate(tokens.lengths_B.tolist()):
        edges = [0, *tokens.starts_BT[row, :length].nonzero()[:, 0].tolist(), length]
        pairs = itertools.pairwise(edges)
        found += [(row, begin, end) for begin, end in pairs if mask_BT[row, begin:end].any()]
    longest = max((end - begin for _, begin, end in found), default=0)
    ids_SU = tokens.input_ids_BT.new_zeros(len(found), longest)
    mask_SU = torch.zeros(len(found), longest, dtype=torch.bool)
    for part, (row, begin, end) in enumerate(found):
        ids_SU[part, : end - begin] = tokens.input_ids_BT[row, begin:end]
        mask_SU[part, : end - begin] = mask_BT[row, begin:end]
    width = mask_BT.shape[1]
    places = [torch.arange(row * width + begin, row * width + end) for row, begin, end in found]
    lengths_S = torch.tensor([end - begin for _, begin, end in found], dtype=torch.long)
    return Parts(
        tokens=Tokens(input_ids_BT=ids_SU, lengths_B=lengths_S),
        mask_SU=mask_SU,
        rows_S=torch.tensor([row for row, _, _ in found], dtype=torch.long),
        places_N=torch.cat(places) if places else torch.zeros(0, dtype=torch.long),
        shape=mask_BT.shape,
    )


def needed_in_parts(tokens: Tokens, mask_BT: Tensor) -> Tensor:
    """Return `[B]`: how many tokens of each row go through the model, over all of its parts."""
    parts = cut(tokens, mask_BT.bool().cpu())
    needed_B = torch.zeros(len(mask_BT), dtype=torch.long)
    return needed_B.index_add(0, parts.rows_S, needed_tokens(parts.mask_SU))
