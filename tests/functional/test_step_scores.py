"""Scores of steps: the worked numbers, and changes that no aggregate may reward."""

from __future__ import annotations

import doctest

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import catalogue

from posttrain.functional import step_scores
from posttrain.functional.step_scores import AGGREGATES, aggregate, binary_cross_entropy

Z = torch.tensor([2, 0.5, -1], dtype=torch.float64)


def test_three_steps_two_of_them_right():
    loss_S = binary_cross_entropy(Z, torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64))
    assert loss_S.mean().item() == pytest.approx(0.3047555609, rel=1e-9)


@catalogue(
    "how, expected", [("prod", 0.1474499205), ("min", 0.2689414214), ("last", 0.2689414214), ("mean", 0.5907326102)]
)
def test_one_number_for_a_solution(how, expected):
    assert Z.sigmoid().tolist() == pytest.approx([0.880797078, 0.6224593312, 0.2689414214], rel=1e-9)
    assert aggregate(Z.sigmoid(), how).item() == pytest.approx(expected, rel=1e-9)


@given(probabilities=st.lists(st.floats(0, 1), min_size=1, max_size=8), more=st.floats(0, 1))
def test_a_step_that_is_added_never_pays_by_itself(probabilities, more):
    """min and prod can only fall. last and mean stay within the range of the steps' own values."""
    before = torch.tensor(probabilities, dtype=torch.float64)
    after = torch.tensor([*probabilities, more], dtype=torch.float64)
    assert aggregate(after, "min") <= aggregate(before, "min")
    assert aggregate(after, "prod") <= aggregate(before, "prod")
    assert all(0 <= aggregate(after, how) <= after.max() + 1e-12 for how in AGGREGATES)


@given(z=st.floats(-30, 30), y=st.floats(0, 1))
def test_the_gradient_is_the_probability_minus_the_label(z, y):
    z_leaf = torch.tensor(z, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(binary_cross_entropy(z_leaf, torch.tensor(y, dtype=torch.float64)), z_leaf)
    assert gradient.item() == pytest.approx(torch.tensor(z, dtype=torch.float64).sigmoid().item() - y, abs=1e-8)


def test_examples_are_true():
    assert doctest.testmod(step_scores).failed == 0
