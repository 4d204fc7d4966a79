"""Attention of rows that share prompts: what a group sees in common is read once for all of its rows.

The queries of the rows of one prompt stand beside each other in a grid, so that their products with its keys and values
are one matrix product per prompt and head; each row's own keys and values are one product per row and head. Both kinds
of scores go through one softmax:

    weights = softmax([ scaling q K_prompt + mask | scaling q K_row + mask ])
    output = weights_prompt V_prompt + weights_row V_row

n rows, P prompts, g places in a group (its largest), H query heads, K key-value heads, H = K G, N = H + 2 K, D width of
a head, C_p and C_s columns of prompts and of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Stored = tuple[Tensor, Tensor]
"""Keys `[S K, D, C]` and values `[S K, C, D]` of the slots in use."""


@dataclass(frozen=True)
class Heads:
    """H, K and D of a model, and by what scores are multiplied."""

    query: int
    key: int
    width: int
    scaling: float


@dataclass(frozen=True)
class Groups:
    """Where the queries of n rows stand in the grid `[P, K, g, G]` of their groups, and the way back."""

    num_prompts: int
    places: int
    """g."""
    from_tokens: Tensor
    """In `[n N]`: the query of every place of the grid, then of every row `[n, K, G]`."""
    from_rows: Tensor
    """In `[n H]`: the query of every place of the grid. Places that nobody has repeat that of row 0."""
    from_grid: Tensor
    """In the grid: the place of every row's query, `[n, K, G]`."""

    @staticmethod
    def of(
        prompt_n: Sequence[int], num_prompts: int, heads: Heads, device: torch.device, *, num_filled: int = 0
    ) -> Groups:
        """`prompt_n`: the prompt of every row. Rows beyond them, up to `num_filled`, ask what row 0 asks."""
        taken = [0] * num_prompts
        place_n = []
        for prompt in prompt_n:
            place_n.append(taken[prompt])
            taken[prompt] += 1
        prompts, own_place, rows_n = np.array(prompt_n), np.array(place_n), np.arange(len(prompt_n))
        places, per_key = max(taken), heads.query // heads.key
        row_Pg = np.zeros((num_prompts, places), dtype=np.int64)
        row_Pg[prompts, own_place] = rows_n
        head_KG = np.arange(heads.query).reshape(heads.key, per_key)
        row_P1g1, head_K1G = row_Pg[:, None, :, None], head_KG[:, None]
        tokens = heads.query + 2 * heads.key
        grid_n = prompts * heads.key * places + own_place
        row_m = np.arange(max(num_filled, len(prompt_n)))
        asks_m = np.where(row_m < len(prompt_n), row_m, 0)
        from_grid = (grid_n[asks_m][:, None, None] + np.arange(heads.key)[:, None] * places) * per_key
        from_tokens = [(row_P1g1 * tokens + head_K1G).ravel(), (asks_m[:, None, None] * tokens + head_KG).ravel()]

        def on_device(index: np.ndarray) -> Tensor:
            return torch.from_numpy(index).to(device)

        return Groups(
            num_prompts=num_prompts,
            places=places,
            from_tokens=on_device(np.concatenate(from_tokens)),
            from_rows=on_device((row_P1g1 * heads.query + head_K1G).ravel()),
            from_grid=on_device((from_grid + np.arange(per_key)).ravel()),
        )


def attend_rows(
    qkv_nND: Tensor, groups: Groups, prompts: Stored, rows: Stored, mask_n1C: Tensor, heads: Heads
) -> Tensor:
    """`[n, H D]`. `mask_n1C` is added to the scores, the columns of prompts before those of rows."""
    num_rows, (keys_p, values_p), (keys_s, values_s) = len(qkv_nND), prompts, rows
    in_grid = (groups.num_prompts * heads.key, -1)
    queries = qkv_nND.reshape(-1, heads.width).index_select(0, groups.from_tokens)
    num_in_grid = len(groups.from_rows)
    grid_QD, own_QD = queries[:num_in_grid], queries[num_in_grid:]
    scores_p = torch.bmm(grid_QD.view(*in_grid, heads.width), keys_p).flatten(0, 1).index_select(0, groups.from_grid)
    scores_s = torch.bmm(own_QD.view(num_rows * heads.key, -1, heads.width), keys_s).flatten(0, 1)
    scores_nHC = torch.cat([scores_p, scores_s], dim=-1).view(num_rows, heads.query, -1)
    scores_nHC = torch.add(mask_n1C, scores_nHC, alpha=heads.scaling)
    weights_nHC = scores_nHC.softmax(dim=-1).to(values_s.dtype)  # it sums in float32 whatever its input is
    columns_p = keys_p.shape[-1]
    shared_QC = weights_nHC.flatten(0, 1)[:, :columns_p].index_select(0, groups.from_rows)
    shared_QD = torch.bmm(shared_QC.view(*in_grid, columns_p), values_p).flatten(0, 1).index_select(0, groups.from_grid)
    own_weights = weights_nHC.view(num_rows * heads.key, -1, weights_nHC.shape[-1])[..., columns_p:]
    output = torch.baddbmm(shared_QD.view(*own_weights.shape[:2], heads.width), own_weights, values_s)
    return output.view(num_rows, -1)


def attend_prompt(qkv_TND: Tensor, mask_TT: Tensor | None, heads: Heads) -> Tensor:
    """`[T, H D]` of one prompt; without a mask a token sees itself and those before it."""
    query, key, value = qkv_TND.transpose(0, 1)[None].split([heads.query, heads.key, heads.key], dim=1)
    key, value = (x.repeat_interleave(heads.query // heads.key, dim=1) for x in (key, value))
    output_1HTD = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask_TT, is_causal=mask_TT is None, scale=heads.scaling
    )
    return output_1HTD[0].transpose(0, 1).flatten(1)
