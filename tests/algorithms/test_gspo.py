"""GSPO: worked numbers for several clips, and metrics that count completions."""

import pytest
import torch
from tests.catalogue import catalogue

from posttrain.algorithms import GSPO
from posttrain.errors import ConfigError
from posttrain.functional.ratios import clipped_surrogate, sequence_ratio
from posttrain.functional.reductions import sequence_sum, token_mean
from posttrain.types import Batch, count_totals

WIDE = GSPO(clip_low=0.2, clip_high=0.2)


@catalogue(
    "algorithm, expected",
    [
        (WIDE, 1.102519064),
        (GSPO(clip_low=0.05, clip_high=0.05), 1.129216383),
        (GSPO(), 1.152793883),
    ],
)
def test_worked_loss(t, algorithm: GSPO, expected: float):
    loss, _ = algorithm.loss(t.logprobs_BT, t.batch(), t.totals)
    assert loss.item() == pytest.approx(expected, rel=1e-8)


def test_worked_gradient(t, assert_ragged):
    logprobs_BT = t.logprobs_BT
    WIDE.loss(logprobs_BT, t.batch(), t.totals)[0].backward()
    expected = [
        [-0.108690405, -0.108690405, -0.108690405],
        [0.07531194794, 0.07531194794],
        [-0.02450496683, -0.02450496683, -0.02450496683, -0.02450496683],
        [1.37598625],
    ]
    assert_ragged(logprobs_BT.grad, expected)


def test_worked_loss_of_each_completion(t):
    ratio_B1 = sequence_ratio(t.logprobs_BT, t.old_BT, t.mask_BT)
    per_row_B = clipped_surrogate(ratio_B1, t.advantages_BT[:, :1], 0.2, 0.2).flatten()
    assert per_row_B.tolist() == pytest.approx([-1.304284859, 0.6024955835, -0.3920794693, 5.503945001], rel=1e-8)
    for row, expected in enumerate(per_row_B):
        batch = t.batch().rows([row])
        loss, _ = WIDE.loss(t.logprobs_BT[[row]], batch, count_totals(batch))
        assert loss.item() == pytest.approx(expected.item(), rel=1e-12)


def test_worked_other_averages(t):
    """TRL and verl by default take a mean over all tokens. LUSPO multiplies by the length."""
    ratio_B1 = sequence_ratio(t.logprobs_BT, t.old_BT, t.mask_BT)
    loss_BT = clipped_surrogate(ratio_B1, t.advantages_BT[:, :1], 0.2, 0.2).expand(t.mask_BT.shape)
    assert token_mean(loss_BT, t.mask_BT, tokens=10).item() == pytest.approx(0.1227763713, rel=1e-8)
    assert sequence_sum(loss_BT, t.mask_BT, sequences=4).item() == pytest.approx(0.3069409282, rel=1e-8)


def test_the_clip_counts_completions(t):
    """s = [1.09, 0.86, 0.98, 3.67], A = [1.2, -0.7, 0.4, -1.5]: with a clip of 0.05 one is too high and one too low."""
    _, metrics = GSPO(clip_low=0.05, clip_high=0.05).loss(t.logprobs_BT, t.batch(), t.totals)
    assert float(metrics["clip_ratio/low_mean"]) == 1 / 4
    assert float(metrics["clip_ratio/high_mean"]) == 1 / 4
    assert float(metrics["policy/out_of_band"]) == 3 / 4
    batch = t.batch(without_rows=[0])
    _, metrics = GSPO(clip_low=0.05, clip_high=0.05).loss(t.logprobs_BT, batch, count_totals(batch))
    assert float(metrics["clip_ratio/region_mean"]) == pytest.approx(1 / 3)


def test_a_clipped_completion_has_no_gradient_on_any_token(t):
    logprobs_BT = t.logprobs_BT
    GSPO().loss(logprobs_BT, t.batch(), t.totals)[0].backward()
    assert (logprobs_BT.grad[:2] == 0).all()
    assert (logprobs_BT.grad[3, 0] != 0).all()


def test_the_kl_is_averaged_like_the_policy_term(t):
    batch = t.batch()
    without = Batch(
        completion_mask_BT=t.mask_BT,
        advantages_BT=torch.zeros_like(t.old_BT),
        old_logprobs_BT=t.old_BT,
        ref_logprobs_BT=t.ref_BT,
        groups_B=batch.groups_B,
    )
    loss, _ = GSPO(kl_coef=1.0).loss(t.logprobs_BT, without, t.totals)
    assert loss.item() == pytest.approx(0.07964645785, rel=1e-8)


def test_k1_in_the_loss_is_refused():
    with pytest.raises(ConfigError, match=r"'k1' in the loss: its expected gradient is zero"):
        GSPO(kl_estimator="k1")
