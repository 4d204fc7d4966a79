"""TOPR: worked numbers, positives that count fully and negatives that fade, and its constant baseline."""

from dataclasses import replace

import pytest
import torch

from posttrain.algorithms import REINFORCE, TOPR
from posttrain.types import Batch, Experience


def test_worked_loss_and_gradient(t, assert_ragged):
    """The ratios are [1.28, 0.74, 0.92, 3.67] and the weights [1, 0.74, 1, 1]. Only the second completion is a negative
    that has become less likely."""
    logprobs_BT = t.logprobs_BT
    loss, metrics = TOPR().loss(logprobs_BT, t.batch(), t.totals)
    loss.backward()
    assert loss.item() == pytest.approx(0.1340704341, rel=1e-8)
    assert_ragged(logprobs_BT.grad, [[-0.3] * 3, [0.1296431886] * 2, [-0.1] * 4, [0.375]])
    assert float(metrics["policy/weight_mean"]) == pytest.approx((3 + 0.7408182207) / 4, rel=1e-8)


def test_on_policy_it_is_reinforce(t):
    batch = Batch(completion_mask_BT=t.mask_BT, advantages_BT=t.advantages_BT, groups_B=t.batch().groups_B)
    gradients = []
    for algorithm in (TOPR(), REINFORCE()):
        logprobs_BT = t.logprobs_BT
        algorithm.loss(logprobs_BT, batch, t.totals)[0].backward()
        gradients.append(logprobs_BT.grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=0)


def test_a_long_bad_answer_that_the_policy_has_left_pushes_no_more_but_a_good_one_pulls_fully(t):
    far = replace(t.batch(), old_logprobs_BT=t.logprobs_BT.detach() + 15)
    logprobs_BT = t.logprobs_BT
    TOPR().loss(logprobs_BT, far, t.totals)[0].backward()
    assert logprobs_BT.grad[1].abs().max() < 1e-8
    assert logprobs_BT.grad[0, :3].tolist() == pytest.approx([-0.3] * 3)


def test_the_baseline_decides_which_answers_are_bad():
    experience = Experience.from_rewards(
        torch.tensor([[1.0, 0.0]], dtype=torch.float64), completion_mask_BT=torch.ones(2, 1)
    )
    assert TOPR().advantages(experience).flatten().tolist() == [1, 0]
    assert TOPR(baseline=0.25).advantages(experience).flatten().tolist() == [0.75, -0.25]
    assert TOPR(baseline=-1.0).advantages(experience).flatten().tolist() == [2, 1]


def test_it_is_its_own_off_policy_correction():
    """A run that corrects therefore takes the sampler's numbers as the anchor, and adds no weight."""
    assert TOPR.auto_correction == "bypass"


def test_the_ratio_is_to_what_sampled_wherever_that_is_known(t):
    """This also holds outside of a run. If the sampler gave no number, the old log-probability replaces it."""
    unknown_BT = t.old_BT.clone()
    unknown_BT[1, 0] = -torch.inf
    given = (
        {"old_logprobs_BT": None, "sampling_logprobs_BT": t.old_BT},
        {"old_logprobs_BT": t.old_BT - 5, "sampling_logprobs_BT": t.old_BT},
        {"old_logprobs_BT": t.old_BT, "sampling_logprobs_BT": unknown_BT},
    )
    for numbers in given:
        loss, _ = TOPR().loss(t.logprobs_BT, replace(t.batch(), **numbers), t.totals)
        assert loss.item() == pytest.approx(0.1340704341, rel=1e-8)


def test_a_rejected_token_is_not_part_of_the_ratio(t):
    """The bad answer's other token has risen. Without the token that fell, the answer is not tapered."""
    sampling_BT = t.old_BT.clone()
    sampling_BT[1, 0] -= 3  # the weight is exp(3): rejected
    batch = replace(t.batch(), sampling_logprobs_BT=sampling_BT)
    logprobs_BT = t.logprobs_BT
    TOPR(correction={"action": "mask", "low": 0.5, "high": 1.5}).loss(logprobs_BT, batch, t.totals)[0].backward()
    assert logprobs_BT.grad[1, :2].tolist() == pytest.approx([0, 0.175])


def test_with_the_bypass_the_ratio_is_to_what_sampled(t):
    """The trainer's old log-probabilities are passed as well, but the ratio ignores them."""
    batch = replace(t.batch(), old_logprobs_BT=t.old_BT - 5, sampling_logprobs_BT=t.old_BT)
    loss, _ = TOPR(correction="bypass").loss(t.logprobs_BT, batch, t.totals)
    assert loss.item() == pytest.approx(0.1340704341, rel=1e-8)
