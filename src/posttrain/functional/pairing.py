"""Preference pairs from groups of scored completions. P prompts, G completions and K candidate pairs per prompt."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

from posttrain.functional.baselines import rounding

if TYPE_CHECKING:
    from torch import Tensor


class Compared(NamedTuple):
    """K candidate pairs of completions per prompt, as indices into the group, with their ties and decisions."""

    chosen_PK: Tensor
    rejected_PK: Tensor
    tied_PK: Tensor
    """True if both completions have a score and the scores are equal or the answers identical."""
    decided_PK: Tensor
    """True if both completions have a score and the chosen one is better. If neither holds, a score is missing."""


def gaps(scores_PG: Tensor, usable_PG: Tensor, same_PGG: Tensor | None = None) -> Tensor:
    """`[P, G, G]`: the score of the first answer minus that of the second; -inf if they cannot be compared.

    Two answers cannot be compared if one of them is not usable, or if they are identical: then no label can be right.

    >>> gaps(torch.tensor([[2.0, 5.0]]), torch.ones(1, 2, dtype=torch.bool)).tolist()
    [[[-inf, -3.0], [3.0, -inf]]]
    """
    both_PGG = usable_PG[:, :, None] & usable_PG[:, None]
    itself_GG = torch.eye(scores_PG.shape[1], dtype=torch.bool, device=scores_PG.device)
    apart_PGG = both_PGG & ~itself_GG if same_PGG is None else both_PGG & ~itself_GG & ~same_PGG
    return (scores_PG[:, :, None] - scores_PG[:, None]).masked_fill(~apart_PGG, -math.inf)


def best_against_worst(scores_PG: Tensor, usable_PG: Tensor, same_PGG: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`[P, 1]` and `[P, 1]`: the two different answers with the largest gap; at ties the first best and the last worst.

    If all usable answers are identical, return two of them.

    >>> best_against_worst(torch.tensor([[2.0, 5.0, 1.0, 5.0]]), torch.ones(1, 4, dtype=torch.bool))
    (tensor([[1]]), tensor([[2]]))
    """
    gaps_PGG, group_size = gaps(scores_PG, usable_PG, same_PGG), scores_PG.shape[1]
    if same_PGG is not None:
        none_P11 = (gaps_PGG == -math.inf).flatten(1).all(dim=-1)[:, None, None]
        gaps_PGG = gaps(scores_PG, usable_PG).where(none_P11, gaps_PGG)
    widest_P1 = gaps_PGG.flip(-1).flatten(1).argmax(dim=-1, keepdim=True)
    return widest_P1 // group_size, group_size - 1 - widest_P1 % group_size


def every_two(scores_PG: Tensor) -> tuple[Tensor, Tensor]:
    """`[P, K]` and `[P, K]`, K = G (G - 1) / 2: every pair of indices in the group, the smaller one first."""
    num_prompts, group_size = scores_PG.shape
    first_K, second_K = torch.triu_indices(group_size, group_size, offset=1, device=scores_PG.device)
    return first_K.expand(num_prompts, -1), second_K.expand(num_prompts, -1)


def same_answers(input_ids_BT: Tensor, lengths_B: Tensor, group_size: int) -> Tensor:
    """`[P, G, G]` bool: true if two completions of a prompt have the same tokens. Rows are padded on the right."""
    ids_PGT = input_ids_BT.reshape(-1, group_size, input_ids_BT.shape[1])
    lengths_PG = lengths_B.reshape(-1, group_size)
    same_ids_PGG = (ids_PGT[:, :, None] == ids_PGT[:, None]).all(dim=-1)
    return same_ids_PGG & (lengths_PG[:, :, None] == lengths_PG[:, None])


def compared(
    scores_PG: Tensor, usable_PG: Tensor, same_PGG: Tensor | None, first_PK: Tensor, second_PK: Tensor
) -> Compared:
    """Return the pairs with the better completion of each as the chosen one; at a tie the first.

    `same_PGG`, if known, marks identical answers of a group. Two identical answers are a tie, because no label can be
    right for them. Scores that differ only by rounding are a tie, too.
    """
    ahead_PK = scores_PG.gather(1, first_PK) - scores_PG.gather(1, second_PK)
    usable_PK = usable_PG.gather(1, first_PK) & usable_PG.gather(1, second_PK) & (first_PK != second_PK)
    equal_PK = ahead_PK.abs() <= rounding(scores_PG, usable_PG)
    if same_PGG is not None:
        prompts_P1 = torch.arange(scores_PG.shape[0], device=scores_PG.device)[:, None]
        equal_PK = equal_PK | same_PGG[prompts_P1, first_PK, second_PK]
    swapped_PK = (ahead_PK < 0) & ~equal_PK
    return Compared(
        chosen_PK=torch.where(swapped_PK, second_PK, first_PK),
        rejected_PK=torch.where(swapped_PK, first_PK, second_PK),
        tied_PK=usable_PK & equal_PK,
        decided_PK=usable_PK & ~equal_PK,
    )
