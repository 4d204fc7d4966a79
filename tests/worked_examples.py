"""Fixtures for the worked examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from posttrain.types import Batch, Totals, count_totals

Ragged = Sequence[Sequence[float]]


@dataclass(frozen=True)
class TokenFixture:
    """Fixture T of the algorithm reference: four completions of 3, 2, 4 and 1 tokens, in float64.

    Padding holds nan, so code that reads padding fails.
    """

    ragged_logprobs: Ragged = ((-0.45, -0.90, -0.40), (-2.40, -0.60), (-0.08, -1.75, -0.75, -0.40), (-0.80,))
    ragged_old: Ragged = ((-0.50, -1.20, -0.30), (-2.00, -0.70), (-0.10, -1.50, -0.90, -0.40), (-2.10,))
    ragged_ref: Ragged = ((-0.60, -1.00, -0.35), (-1.90, -0.80), (-0.20, -1.40, -1.10, -0.40), (-1.50,))
    advantages: Sequence[float] = (1.2, -0.7, 0.4, -1.5)

    @property
    def mask_BT(self) -> Tensor:
        return ~pad(self.ragged_old).isnan()

    @property
    def logprobs_BT(self) -> Tensor:
        """A new leaf tensor that requires a gradient, on each access."""
        return pad(self.ragged_logprobs).requires_grad_()

    @property
    def old_BT(self) -> Tensor:
        return pad(self.ragged_old)

    @property
    def ref_BT(self) -> Tensor:
        return pad(self.ragged_ref)

    @property
    def advantages_BT(self) -> Tensor:
        return pad([[a] * len(row) for a, row in zip(self.advantages, self.ragged_old, strict=True)])

    def batch(self, *, without_rows: Sequence[int] = ()) -> Batch:
        mask_BT = self.mask_BT
        mask_BT[list(without_rows)] = False
        return Batch(
            completion_mask_BT=mask_BT,
            advantages_BT=self.advantages_BT,
            old_logprobs_BT=self.old_BT,
            ref_logprobs_BT=self.ref_BT,
            groups_B=torch.zeros(4, dtype=torch.long),
        )

    @property
    def totals(self) -> Totals:
        return count_totals(self.batch())


def pad(ragged: Ragged, fill: float = float("nan")) -> Tensor:
    longest = max(map(len, ragged))
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in ragged], dtype=torch.float64)


@pytest.fixture
def t() -> TokenFixture:
    return TokenFixture()


@pytest.fixture
def assert_ragged():
    """Compare `[B, T]` with a worked example's numbers, printed with 10 digits. All values outside must be 0."""

    def check(actual_BT: Tensor, expected: Ragged) -> None:
        torch.testing.assert_close(actual_BT.detach(), pad(expected, fill=0.0), rtol=1e-8, atol=1e-12)

    return check


@pytest.fixture
def rewards_PG() -> Tensor:
    """Fixture R of the algorithm reference: three prompts, four completions each."""
    return torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.2, 0.9, 0.5, 0.4], [1.0, 1.0, 1.0, 1.0]], dtype=torch.float64)


@pytest.fixture
def lengths_PG() -> Tensor:
    """Fixture L of the algorithm reference: the lengths of the completions of fixture R."""
    return torch.tensor([[3, 2, 4, 1], [2, 2, 3, 5], [1, 4, 2, 3]])
