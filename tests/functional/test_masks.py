"""Masks: EOS is trained, what follows is not, and nothing that a mask hides is ever read."""

import pytest
import torch

from posttrain.functional.masks import last_token, masked, until_eos

EOS = 2


@pytest.mark.parametrize(
    ("ids", "eos_ids", "expected"),
    [
        ([5, 6, EOS, 7], {EOS}, [1, 1, 1, 0]),
        ([EOS, 5, 6, 7], {EOS}, [1, 0, 0, 0]),
        ([5, 6, 7, 8], {EOS}, [1, 1, 1, 1]),
        ([5, EOS, EOS, EOS], {EOS}, [1, 1, 0, 0]),
        ([5, 9, EOS, 7], {EOS, 9}, [1, 1, 0, 0]),
        ([5, 6, 7, EOS], {EOS}, [1, 1, 1, 1]),
        ([5, EOS, 6, EOS], {EOS}, [1, 1, 0, 0]),
        ([5, 6, 7, 8], set(), [1, 1, 1, 1]),
    ],
    ids=["inside", "first", "none", "pad is eos", "several eos ids", "last", "text after eos", "no eos id"],
)
def test_a_completion_ends_with_its_first_eos(ids: list[int], eos_ids: set[int], expected: list[int]):
    assert until_eos(torch.tensor([ids]), eos_ids).int().tolist() == [expected]


def test_rows_end_independently():
    mask_BT = until_eos(torch.tensor([[EOS, 5, 5], [5, 5, EOS], [5, 5, 5]]), {EOS})
    assert mask_BT.sum(dim=-1).tolist() == [1, 3, 3]


def test_the_last_token_is_the_last_one_that_is_masked_in():
    """Also with a hole, as tool output leaves one; an empty row has none."""
    mask_BT = torch.tensor([[1, 0, 1, 0], [0, 1, 1, 1], [0, 0, 0, 0]]).bool()
    assert last_token(mask_BT).int().tolist() == [[0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]]


@pytest.mark.parametrize("hidden", [float("nan"), float("inf"), -float("inf")])
def test_what_the_mask_hides_is_exactly_zero(hidden: float):
    x_BT = torch.tensor([[1.5, hidden]], dtype=torch.float64, requires_grad=True)
    y_BT = masked(x_BT, torch.tensor([[True, False]]))
    y_BT.sum().backward()
    assert y_BT.tolist() == [[1.5, 0.0]]
    assert x_BT.grad is not None
    assert x_BT.grad.tolist() == [[1.0, 0.0]]


def test_masking_keeps_the_dtype():
    mask = torch.tensor([True, False])
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        assert masked(torch.ones(2, dtype=dtype), mask).dtype == dtype
