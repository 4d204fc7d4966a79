"""DPO: worked numbers, the limit at the reference, its divergences and length weights, and its refusals."""

import math

import pytest
import torch
from tests.algorithms.preference_data import AT_REFERENCE, P_FLOAT32, P, PairFixture, one_pair
from tests.catalogue import catalogue

from posttrain.algorithms.cdpo import CDPO
from posttrain.algorithms.dpo import DPO
from posttrain.errors import ConfigError
from posttrain.types import Batch, Outputs, count_totals

LD_TOKENS = [[-0.5, -0.2, -0.1, -0.4, -0.3], [-0.6, -0.9, -0.2, 0, 0]]
LD_REFERENCE = [[-0.6, -0.3, -0.1, -0.2, -0.2], [-0.5, -0.7, -0.3, 0, 0]]


def test_worked_losses_and_gradient():
    step = P.evaluate(DPO())
    assert P.losses(DPO()) == pytest.approx([0.6117553389, 0.7602581947], rel=1e-8)
    assert step.loss.item() == pytest.approx(0.6860067668, rel=1e-8)
    expected_B = torch.tensor([-0.02288010296, -0.02662271532, 0.02288010296, 0.02662271532], dtype=torch.float64)
    mask_BT = P.batch.completion_mask_BT
    torch.testing.assert_close(step.gradient_BT, expected_B[:, None] * mask_BT, rtol=1e-8, atol=0)


def test_worked_loss_in_float32():
    assert P_FLOAT32.loss(DPO()) == pytest.approx(0.6860067668, rel=1e-5)


def test_worked_metrics():
    metrics = P.evaluate(DPO()).metrics
    assert {name: float(metric) for name, metric in metrics.items()} == pytest.approx(
        {
            "rewards/chosen": 0.03,
            "rewards/rejected": 0.01,
            "rewards/margins": 0.02,
            "rewards/accuracies": 0.5,
            "logps/chosen": -16.15,
            "logps/rejected": -16.8,
            "nll_loss": 2.01875,
        },
        rel=1e-12,
    )


def test_at_the_reference_the_loss_is_log_2_and_nothing_is_accurate():
    step = AT_REFERENCE.evaluate(DPO())
    assert step.loss.item() == pytest.approx(math.log(2), rel=1e-12)
    assert step.metric("rewards/accuracies") == 0
    assert step.metric("rewards/margins") == 0


def test_swapping_chosen_and_rejected_negates_the_margin():
    there, back = P.evaluate(DPO()), P.swapped().evaluate(DPO())
    assert back.metric("rewards/margins") == pytest.approx(-there.metric("rewards/margins"), rel=1e-12)
    assert back.metric("rewards/accuracies") == pytest.approx(1 - there.metric("rewards/accuracies"))


def test_equal_answers_have_no_gradient_between_them():
    """The gradient of the rejected row is minus that of the chosen row, token by token."""
    step = PairFixture([-5.0], [-5.0], [-4.0], [-4.0], [3], [3]).evaluate(DPO())
    assert torch.equal(step.gradient_BT[0], -step.gradient_BT[1])


def test_label_smoothing_is_cdpo():
    assert P.loss(DPO(label_smoothing=0.1)) == P.loss(CDPO(label_smoothing=0.1))


@pytest.mark.parametrize(
    ("divergence", "expected"),
    [("forward_kl", 0.6815586297), ("jensen_shannon", 0.6882898555), ("alpha", 0.6842092924)],
)
def test_worked_divergences(divergence, expected):
    assert P.loss(DPO(divergence=divergence, alpha=0.5)) == pytest.approx(expected, rel=1e-8)


def test_alpha_0_is_the_forward_kl_and_near_1_the_reverse_kl():
    assert P.loss(DPO(divergence="alpha", alpha=0)) == pytest.approx(P.loss(DPO(divergence="forward_kl")), rel=1e-12)
    assert P.loss(DPO(divergence="alpha", alpha=1 - 1e-7)) == pytest.approx(P.loss(DPO()), rel=1e-6)


@pytest.mark.parametrize(("tail_weight", "expected"), [(0.3, 0.6777673008), (1.0, 0.6881596805)])
def test_worked_length_desensitised_loss(tail_weight, expected):
    """The chosen answer has five tokens, the rejected one three. The last two of the five count `tail_weight`."""
    mask_BT = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    batch = Batch.from_pairs(mask_BT, torch.tensor(LD_REFERENCE, dtype=torch.float64))
    logprobs_BT = torch.tensor(LD_TOKENS, dtype=torch.float64)
    loss, _ = DPO(tail_weight=tail_weight).loss(logprobs_BT, batch, count_totals(batch))
    assert loss.item() == pytest.approx(expected, rel=1e-8)


@catalogue("divergence", ["reverse_kl", "forward_kl", "jensen_shannon", "alpha"])
@catalogue("log_ratio", [50.0, -50.0, 1e4, -1e4])
def test_far_from_the_reference_everything_stays_finite(divergence, log_ratio):
    step = one_pair(log_ratio, -log_ratio).evaluate(DPO(divergence=divergence))
    assert step.loss.isfinite()
    assert step.gradient_BT[one_pair(0, 0).batch.completion_mask_BT].isfinite().all()


def test_entropy_is_logged_where_it_is_there():
    entropy_BT = torch.full_like(P.logprobs_BT, 0.7)
    _, metrics = DPO().loss(Outputs(P.logprobs_BT, entropy_BT=entropy_BT), P.batch, count_totals(P.batch))
    assert float(metrics["entropy"]) == pytest.approx(0.7)


def test_a_missing_reference_is_refused():
    batch = Batch.from_pairs(P.batch.completion_mask_BT)
    with pytest.raises(ConfigError, match=r"(?s)no reference log-probabilities.*simpo, orpo or cpo"):
        DPO().loss(P.logprobs_BT, batch, count_totals(batch))


def test_rows_that_are_no_pairs_are_refused():
    batch = Batch(completion_mask_BT=torch.ones(2, 2, dtype=torch.bool), groups_B=torch.zeros(2, dtype=torch.long))
    with pytest.raises(ValueError, match=r"no preference pairs; build it with Batch.from_pairs"):
        DPO().loss(torch.zeros(2, 2), batch, count_totals(batch))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"beta": 0}, r"dpo.beta = 0; allowed: greater than 0"),
        ({"label_smoothing": 0.5}, r"dpo.label_smoothing = 0.5; allowed: less than 0.5"),
        ({"divergence": "tv"}, r"dpo.divergence = 'tv'; allowed: 'reverse_kl', 'forward_kl'"),
        (
            {"divergence": "alpha", "alpha": 1.0},
            r"(?s)alpha = 1, for which the alpha divergence is the reverse KL.*divergence = reverse_kl",
        ),
        ({"tail_weight": 1.5}, r"dpo.tail_weight = 1.5; allowed: less than or equal to 1"),
        ({"gamma": 1}, r"(?s)dpo has no setting 'gamma'; allowed: beta"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        DPO(**given)


def test_an_alpha_that_nothing_reads_is_refused():
    with pytest.raises(ConfigError, match=r"alpha = 0\.3, which divergence = reverse_kl does not read"):
        DPO(alpha=0.3)
    assert DPO(divergence="alpha", alpha=0.3).alpha == 0.3
