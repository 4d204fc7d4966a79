"""Collate rows of ids and numbers into right-padded `[B, T]` tensors. Entry t describes `input_ids_BT[:, t]`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from posttrain.types import Example, Tokens


def collate(rows: Sequence[tuple[Sequence[int], Sequence[int]]], pad_id: int) -> tuple[Tokens, Tensor]:
    """Collate rows of (prompt ids, completion ids) into tokens and `completion_mask_BT`, which is True on completions.

    >>> tokens, mask = collate([((5, 6), (7,)), ((5,), ())], pad_id=0)
    >>> tokens.input_ids_BT.tolist(), tokens.lengths_B.tolist(), mask.int().tolist()
    ([[5, 6, 7], [5, 0, 0]], [3, 1], [[0, 0, 1], [0, 0, 0]])
    """
    return collate_examples(
        [
            Example(
                index=row,
                input_ids=(*prompt, *completion),
                completion_mask=(False,) * len(prompt) + (True,) * len(completion),
            )
            for row, (prompt, completion) in enumerate(rows)
        ],
        pad_id,
    )


def collate_examples(examples: Sequence[Example], pad_id: int) -> tuple[Tokens, Tensor]:
    """Collate examples into tokens and `completion_mask_BT`."""
    lengths_B = torch.tensor([len(example.input_ids) for example in examples], dtype=torch.long)
    longest = int(lengths_B.max()) if len(examples) else 0
    input_ids_BT = torch.full((len(examples), longest), pad_id, dtype=torch.long)
    mask_BT = torch.zeros(len(examples), longest, dtype=torch.bool)
    for row, example in enumerate(examples):
        input_ids_BT[row, : len(example.input_ids)] = torch.tensor(example.input_ids, dtype=torch.long)
        mask_BT[row, : len(example.input_ids)] = torch.tensor(example.completion_mask, dtype=torch.bool)
    return Tokens(input_ids_BT=input_ids_BT, lengths_B=lengths_B), mask_BT


def pad_rows(rows: Sequence[Sequence[float]], mask_BT: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Spread the numbers of each row over its True positions, in order. The result `[B, T]` is 0 elsewhere.

    Raises ValueError if the counts of a row differ: a shifted number would train a wrong model.
    """
    counts = mask_BT.sum(dim=-1).tolist()
    for row, (numbers, count) in enumerate(zip(rows, counts, strict=True)):
        if len(numbers) != count:
            raise ValueError(f"row {row} has {len(numbers)} numbers for {count} completion tokens")
    padded_BT = torch.zeros(mask_BT.shape, dtype=dtype)
    padded_BT[mask_BT] = torch.tensor([number for numbers in rows for number in numbers], dtype=dtype)
    return padded_BT
