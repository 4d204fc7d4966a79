"""Gradients that are moved into one block of memory are the same gradients."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from posttrain.train.optimizer import GradientBlock


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(11, 5), nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3, bias=False).double())


def backward(layers: nn.Sequential, ids: list[int]) -> None:
    hidden = layers[:3](torch.tensor(ids))
    layers[3](hidden.double()).square().sum().backward()


def test_gradients_of_several_micro_batches_are_those_without_a_block_bit_by_bit():
    plain, moved = model(), model()
    GradientBlock(moved.parameters())
    for ids in ([1, 2, 3], [3, 3], [10]):
        backward(plain, ids)
        backward(moved, ids)
    for expected, found in zip(plain.parameters(), moved.parameters(), strict=True):
        assert found.grad is not None
        assert expected.grad is not None
        assert found.grad.dtype == expected.dtype
        assert torch.equal(found.grad, expected.grad)


def test_all_of_them_share_one_storage_and_none_overlaps():
    layers = model()
    GradientBlock(layers.parameters())
    backward(layers, [1, 2])
    gradients = [p.grad for p in layers.parameters() if p.grad is not None]
    assert len({gradient.untyped_storage().data_ptr() for gradient in gradients}) == 1
    ends = sorted((gradient.data_ptr(), gradient.data_ptr() + gradient.nbytes) for gradient in gradients)
    assert all(end <= start for (_, end), (start, _) in pairwise(ends))


def test_a_parameter_that_no_loss_reaches_has_no_gradient():
    layers = model()
    GradientBlock(layers.parameters())
    layers[1](torch.ones(1, 5)).sum().backward()
    assert layers[3].weight.grad is None
    assert layers[0].weight.grad is None


def test_the_next_step_begins_from_nothing():
    layers = model()
    block = GradientBlock(layers.parameters())
    backward(layers, [1, 2])
    first = [p.grad.clone() for p in layers.parameters() if p.grad is not None]
    layers.zero_grad(set_to_none=True)
    block.release()
    backward(layers, [1, 2])
    assert all(torch.equal(p.grad, before) for p, before in zip(layers.parameters(), first, strict=True))  # type: ignore[arg-type]
