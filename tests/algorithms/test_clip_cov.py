"""Clip-Cov: the drawn tokens leave the update. They are drawn once per update, whatever the order and the split."""

from dataclasses import replace

import pytest
import torch

from posttrain.algorithms import DAPO, ClipCov
from posttrain.errors import ConfigError
from posttrain.types import Batch

DRAWN_FROM = {(0, 0), (0, 2), (1, 0), (2, 0), (2, 3)}
"""Tokens of the fixture whose covariance exceeds 0.05."""
FEW = {"cov_low": 0.05, "cov_high": 5.0, "cov_share": 0.2}


def whole_update(t) -> Batch:
    return replace(t.batch(), row_ids_B=torch.arange(4), current_logprobs_BT=t.logprobs_BT.detach())


def test_the_drawn_tokens_are_out_of_loss_and_gradient_and_stay_in_the_denominator(t):
    """On all other tokens it is the clipped loss over all tokens."""
    algorithm, batch = ClipCov(clip_low=0.2, clip_high=0.28, **FEW), whole_update(t)
    prepared = algorithm.prepare(batch)
    assert prepared.selected_BT is not None
    drawn = {(b, s) for b, s in prepared.selected_BT.nonzero().tolist()}
    assert len(drawn) == 2
    assert drawn < DRAWN_FROM - {(1, 0)}  # the clip has stopped (1, 0)

    logprobs_BT, clipped_BT = t.logprobs_BT, t.logprobs_BT
    algorithm.loss(logprobs_BT, prepared, t.totals)[0].backward()
    DAPO().loss(clipped_BT, batch, t.totals)[0].backward()
    expected_BT = torch.where(prepared.selected_BT, 0.0, clipped_BT.grad)
    assert torch.equal(logprobs_BT.grad[t.mask_BT], expected_BT[t.mask_BT])


def test_worked_selection_with_the_paper_s_bounds(t):
    """One token has a covariance between 1 and 5: (2, 1) with 1.43871. With bounds this wide, no clip acts."""
    loss, metrics = ClipCov().loss(t.logprobs_BT, t.batch(), t.totals)
    assert float(metrics["policy/selected_fraction"]) == pytest.approx(0.1)
    without_it = 0.1195293344 - 0.7 * 0.670320046 / 10  # the loss -rho A without any clip, minus that token's term
    assert loss.item() == pytest.approx(without_it, rel=1e-8)


def test_without_candidates_it_is_the_clipped_loss(t):
    loss, metrics = ClipCov(clip_low=0.2, clip_high=0.28, cov_low=5.0).loss(t.logprobs_BT, t.batch(), t.totals)
    assert loss.item() == pytest.approx(0.136989988, rel=1e-8)
    assert float(metrics["policy/selected_fraction"]) == 0


def test_the_draw_depends_on_seed_and_policy_version_and_is_repeated(t):
    def drawn(seed: int, version: int) -> list:
        batch = replace(whole_update(t), versions_BT=torch.full((4, 4), version))
        selected_BT = ClipCov(**FEW, seed=seed).prepare(batch).selected_BT
        assert selected_BT is not None
        return selected_BT.nonzero().tolist()

    assert drawn(seed=0, version=3) == drawn(seed=0, version=3)
    assert len({str(drawn(seed, 0)) for seed in range(30)}) > 5
    assert len({str(drawn(0, version)) for version in range(30)}) > 5


def test_the_draw_follows_its_rows_through_any_order(t):
    order = torch.tensor([2, 0, 3, 1])
    for seed in range(10):
        algorithm, batch = ClipCov(**FEW, seed=seed), whole_update(t)
        in_order, shuffled = algorithm.prepare(batch).selected_BT, algorithm.prepare(batch.rows(order)).selected_BT
        assert in_order is not None
        assert shuffled is not None
        assert torch.equal(shuffled, in_order[order])


def test_a_split_of_a_prepared_update_changes_nothing_and_of_an_unprepared_one_is_refused(t):
    algorithm, batch = ClipCov(**FEW), whole_update(t)

    def in_parts(batch: Batch) -> float:
        return sum(algorithm.loss(t.logprobs_BT[[b]], batch.rows([b]), t.totals)[0].item() for b in range(4))

    whole = algorithm.loss(t.logprobs_BT, algorithm.prepare(batch), t.totals)[0].item()
    assert in_parts(algorithm.prepare(batch)) == pytest.approx(whole, rel=1e-12)
    with pytest.raises(ConfigError, match=r"(?s)some rows of an update.*algorithm.prepare\(batch\)"):
        in_parts(batch)


def test_rows_that_nobody_looked_at_before_are_taken_for_the_whole_update(t):
    algorithm, batch = ClipCov(**FEW), whole_update(t)
    unseen = replace(batch, current_logprobs_BT=None)
    assert algorithm.prepare(unseen).selected_BT is None
    alone, _ = algorithm.loss(t.logprobs_BT, unseen, t.totals)
    prepared, _ = algorithm.loss(t.logprobs_BT, algorithm.prepare(batch), t.totals)
    assert alone.item() == prepared.item()


def test_needs():
    assert ClipCov().needs == {"old", "current", "signal"}
    assert ClipCov(dynamic_sampling=False).needs == {"old", "current"}


def test_a_share_above_1_is_refused():
    with pytest.raises(ConfigError, match=r"clip_cov.cov_share = 1.5; allowed: less than or equal to 1"):
        ClipCov(cov_share=1.5)
