"""GMPO: worked numbers for two clips in log space, and tokens that are clipped one by one."""

import pytest
import torch
from tests.catalogue import catalogue

from posttrain.algorithms import GMPO
from posttrain.errors import ConfigError
from posttrain.types import Batch


@catalogue("clip, expected", [(0.4, 1.102519064), (0.2, 1.129050203)])
def test_worked_loss(t, clip: float, expected: float):
    loss, _ = GMPO(clip_low=clip, clip_high=clip).loss(t.logprobs_BT, t.batch(), t.totals)
    assert loss.item() == pytest.approx(expected, rel=1e-8)


def test_worked_gradient(t, assert_ragged):
    """Only the clipped tokens (1, 2) and (2, 1) are stopped. The others in their completions keep their gradient."""
    logprobs_BT = t.logprobs_BT
    GMPO(clip_low=0.2, clip_high=0.2).loss(logprobs_BT, t.batch(), t.totals)[0].backward()
    expected = [
        [-0.1051271096, 0, -0.1051271096],
        [0, 0.08323257464],
        [-0.02450496683, -0.02450496683, -0.02450496683, -0.02450496683],
        [1.37598625],
    ]
    assert_ragged(logprobs_BT.grad, expected)


def test_worked_metrics(t):
    _, metrics = GMPO(clip_low=0.2, clip_high=0.2).loss(t.logprobs_BT, t.batch(), t.totals)
    assert float(metrics["clip_ratio/low_mean"]) == pytest.approx(0.1)
    assert float(metrics["clip_ratio/high_mean"]) == pytest.approx(0.1)
    assert float(metrics["policy/out_of_band"]) == pytest.approx(0.4)


def test_each_bound_is_its_own_setting(t):
    """In the first completion the second token rose by 0.3. In the second completion the first token fell by 0.4."""
    one_sided = {"clip_low": 9.0, "clip_high": 0.1}, {"clip_low": 0.1, "clip_high": 9.0}
    for settings, stopped, free in zip(one_sided, [(0, 1), (1, 0)], [(1, 0), (0, 1)], strict=True):
        logprobs_BT = t.logprobs_BT
        GMPO(**settings).loss(logprobs_BT, t.batch(), t.totals)[0].backward()
        assert logprobs_BT.grad[stopped] == 0
        assert logprobs_BT.grad[free] != 0


def test_no_advantage_no_gradient(t):
    batch = Batch(
        completion_mask_BT=t.mask_BT,
        advantages_BT=torch.zeros_like(t.old_BT),
        old_logprobs_BT=t.old_BT,
        groups_B=torch.zeros(4, dtype=torch.long),
    )
    logprobs_BT = t.logprobs_BT
    loss, _ = GMPO().loss(logprobs_BT, batch, t.totals)
    loss.backward()
    assert loss.item() == 0
    assert (logprobs_BT.grad == 0).all()


def test_a_negative_bound_is_refused():
    with pytest.raises(ConfigError, match=r"gmpo.clip_low = -0.4; allowed: greater than or equal to 0"):
        GMPO(clip_low=-0.4)
