"""Entry t of every `[B, T]` tensor describes `input_ids_BT[:, t]`, and masks count what they should."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.data.collate import collate, collate_examples, pad_rows
from posttrain.types import Example

PAD = 99
ids = st.lists(st.integers(0, 98), max_size=8)
batches = st.lists(st.tuples(ids, ids), min_size=1, max_size=6)


@given(batches)
def test_every_id_stands_at_its_place_and_padding_at_the_right(rows):
    tokens, mask_BT = collate(rows, pad_id=PAD)
    for row, (prompt, completion) in enumerate(rows):
        length = len(prompt) + len(completion)
        assert tokens.lengths_B[row] == length
        assert tokens.input_ids_BT[row, :length].tolist() == [*prompt, *completion]
        assert (tokens.input_ids_BT[row, length:] == PAD).all()
        assert tokens.input_ids_BT[row, mask_BT[row]].tolist() == list(completion)
    assert mask_BT.sum(dim=-1).tolist() == [len(completion) for _, completion in rows]


@given(batches)
def test_numbers_of_completions_land_beside_their_tokens(rows):
    tokens, mask_BT = collate(rows, pad_id=PAD)
    numbers = [[float(10 * token) for token in completion] for _, completion in rows]
    padded_BT = pad_rows(numbers, mask_BT, dtype=torch.float64)
    torch.testing.assert_close(padded_BT, torch.where(mask_BT, 10.0 * tokens.input_ids_BT.double(), 0.0))


def test_prompts_and_completions_may_be_empty():
    tokens, mask_BT = collate([((), (7,)), ((5,), ()), ((), ())], pad_id=PAD)
    assert tokens.input_ids_BT.tolist() == [[7], [5], [PAD]]
    assert mask_BT.tolist() == [[True], [False], [False]]


def test_trained_turns_between_untrained_ones_keep_their_mask():
    example = Example(index=0, input_ids=(1, 2, 3, 4), completion_mask=(False, True, False, True))
    _, mask_BT = collate_examples([example, Example(index=1, input_ids=(1,), completion_mask=(False,))], pad_id=PAD)
    assert mask_BT.int().tolist() == [[0, 1, 0, 1], [0, 0, 0, 0]]


def test_a_missing_or_extra_number_is_refused():
    _, mask_BT = collate([((1,), (2, 3)), ((1,), (2,))], pad_id=PAD)
    with pytest.raises(ValueError, match="row 1 has 2 numbers for 1 completion tokens"):
        pad_rows([[0.1, 0.2], [0.1, 0.2]], mask_BT, dtype=torch.float32)
    with pytest.raises(ValueError):
        pad_rows([[0.1, 0.2]], mask_BT, dtype=torch.float32)


def test_an_empty_batch_has_no_rows_and_no_columns():
    tokens, mask_BT = collate([], pad_id=PAD)
    assert tokens.input_ids_BT.shape == mask_BT.shape == (0, 0)
