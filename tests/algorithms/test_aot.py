"""AOT: worked numbers, how it matches margins, and that a split does not change the matching."""

from dataclasses import replace

import pytest
import torch
from tests.algorithms.preference_data import P_FLOAT32, P, PairFixture, one_pair
from tests.catalogue import catalogue

from posttrain.algorithms.aot import AOT
from posttrain.algorithms.dpo import DPO
from posttrain.errors import ConfigError
from posttrain.types import Batch, count_totals

CROSSED = PairFixture([-5.0, -9.0], [-8.0, -8.0], [-5.0, -5.0], [-6.0, -9.0], [2, 3], [3, 4])
"""The policy's margins are 3 and -1, the reference's 1 and 4. Sorted, -1 is matched with 1 and 3 with 4."""


def prepared(fixture: PairFixture, algorithm: AOT) -> Batch:
    return algorithm.prepare(replace(fixture.batch, current_logprobs_BT=fixture.logprobs_BT.detach()))


@catalogue("comparison, expected", [("paired", 0.6860067668), ("unpaired", 0.6832096784)])
def test_worked_losses(comparison, expected):
    assert P.loss(AOT(comparison=comparison)) == pytest.approx(expected, rel=1e-8)
    assert P_FLOAT32.loss(AOT(comparison=comparison)) == pytest.approx(expected, rel=1e-5)


def test_margins_meet_the_references_margins_of_the_same_rank():
    assert prepared(CROSSED, AOT()).offsets_B == pytest.approx([4, 1, 4, 1])
    expected = -torch.nn.functional.logsigmoid(0.1 * torch.tensor([3.0 - 4, -1 - 1], dtype=torch.float64)).mean()
    assert CROSSED.loss(AOT()) == pytest.approx(expected.item(), rel=1e-12)


def test_unpaired_answers_meet_the_answer_of_the_same_rank():
    """In fixture P the smaller chosen log-ratio -0.4 is matched with -0.7, and the larger one 1 with 0.9."""
    batch = prepared(P, AOT(comparison="unpaired"))
    assert batch.units == [[0, 3], [1, 2]]
    losses = [1.7 - 0.7 - 0.9, -0.4 + 0.7]
    expected = -torch.nn.functional.logsigmoid(0.1 * torch.tensor(losses, dtype=torch.float64)).mean()
    assert P.loss(AOT(comparison="unpaired")) == pytest.approx(expected.item(), rel=1e-9)


@catalogue("comparison", ["paired", "unpaired"])
def test_with_one_pair_it_is_dpo(comparison):
    assert one_pair(3, 1).loss(AOT(comparison=comparison)) == pytest.approx(one_pair(3, 1).loss(DPO()), rel=1e-12)


@catalogue("comparison", ["paired", "unpaired"])
def test_parts_of_a_step_use_the_order_of_the_whole_step(comparison):
    algorithm = AOT(comparison=comparison)
    batch = prepared(CROSSED, algorithm)
    totals, parts = count_totals(batch), 0.0
    for unit in batch.units:
        parts += algorithm.loss(CROSSED.logprobs_BT[unit], batch.rows(unit), totals)[0].item()
    assert parts == pytest.approx(CROSSED.loss(algorithm), rel=1e-12)
    alone = sum(CROSSED.losses(algorithm)) / 2  # sort each part on its own: what a loss without `prepare` would do
    assert comparison == "unpaired" or alone != pytest.approx(CROSSED.loss(algorithm), rel=1e-3)


def test_a_pair_with_an_empty_side_is_in_no_order():
    batch = CROSSED.batch
    batch.completion_mask_BT[1] = False
    current = replace(batch, current_logprobs_BT=CROSSED.logprobs_BT.detach())
    assert AOT().prepare(current).offsets_B == pytest.approx([1, 0, 1, 0])
    assert AOT(comparison="unpaired").prepare(current).units == [[0, 2], [1, 3]]


def test_a_missing_reference_is_refused():
    batch = Batch.from_pairs(P.batch.completion_mask_BT)
    with pytest.raises(ConfigError, match=r"no reference log-probabilities"):
        AOT().loss(P.logprobs_BT, batch, count_totals(batch))


def test_an_unknown_comparison_is_refused():
    with pytest.raises(ConfigError, match=r"aot.comparison = 'both'; allowed: 'paired' or 'unpaired'"):
        AOT(comparison="both")  # type: ignore[arg-type]
