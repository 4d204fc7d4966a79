"""GSPO-token: worked numbers with an advantage per token. With one advantage per completion it equals GSPO."""

import pytest
import torch
from tests.catalogue import catalogue
from tests.worked_examples import pad

from posttrain.algorithms import GSPO, GSPOToken
from posttrain.errors import ConfigError
from posttrain.types import Batch

ADVANTAGES = [[1.2, 0.9, 0.6], [-0.7, -0.2], [0.4, 0.1, 0.3, 0.8], [-1.5]]


def test_worked_loss_and_gradient(t, assert_ragged):
    batch = Batch(
        completion_mask_BT=t.mask_BT,
        advantages_BT=pad(ADVANTAGES),
        old_logprobs_BT=t.old_BT,
        groups_B=torch.zeros(4, dtype=torch.long),
    )
    logprobs_BT = t.logprobs_BT
    loss, _ = GSPOToken(clip_low=0.2, clip_high=0.2).loss(logprobs_BT, batch, t.totals)
    loss.backward()
    assert loss.item() == pytest.approx(1.130242619, rel=1e-8)
    expected = [
        [-0.108690405, -0.08151780371, -0.05434520248],
        [0.07531194794, 0.02151769941],
        [-0.02450496683, -0.006126241708, -0.01837872512, -0.04900993367],
        [1.37598625],
    ]
    assert_ragged(logprobs_BT.grad, expected)


@catalogue("settings", [{}, {"clip_low": 0.05, "clip_high": 0.05}, {"clip_low": 0.2, "clip_high": 0.2}])
@catalogue("kl_coef", [0.0, 0.1])
def test_with_one_advantage_per_completion_value_and_gradient_are_those_of_gspo(t, settings: dict, kl_coef: float):
    results = []
    for cls in (GSPO, GSPOToken):
        logprobs_BT = t.logprobs_BT
        loss, _ = cls(kl_coef=kl_coef, **settings).loss(logprobs_BT, t.batch(), t.totals)
        loss.backward()
        results.append((loss.detach(), logprobs_BT.grad))
    for gspo, gspo_token in zip(*results, strict=True):
        torch.testing.assert_close(gspo_token, gspo, rtol=1e-12, atol=1e-14)


def test_the_clip_counts_tokens(t):
    _, metrics = GSPOToken(clip_low=0.05, clip_high=0.05).loss(t.logprobs_BT, t.batch(), t.totals)
    assert float(metrics["clip_ratio/low_mean"]) == pytest.approx(0.2)
    assert float(metrics["clip_ratio/high_mean"]) == pytest.approx(0.3)


def test_a_kl_without_a_reference_is_refused(t):
    batch = Batch(completion_mask_BT=t.mask_BT, advantages_BT=t.advantages_BT, groups_B=t.batch().groups_B)
    with pytest.raises(ConfigError, match=r"kl_coef > 0, but there are no reference log-probabilities"):
        GSPOToken(kl_coef=0.1).loss(t.logprobs_BT, batch, t.totals)
