"""KTO: worked numbers, the reference point, and the steps that it refuses."""

from dataclasses import replace

import pytest
import torch
from tests.algorithms.preference_data import LABELS, LabelFixture
from tests.catalogue import catalogue

from posttrain.algorithms.kto import KTO
from posttrain.errors import ConfigError
from posttrain.types import Batch, count_totals

FLOAT32 = replace(LABELS, dtype=torch.float32)
WITHOUT_KL = replace(LABELS, mismatched=(0.0, 0.0, 0.0, 0.0))


def test_worked_losses():
    assert LABELS.losses(KTO()) == pytest.approx([0.481882935, 0.4856289593, 0.5093739015, 0.5081242849], rel=1e-8)
    assert LABELS.loss(KTO()) == pytest.approx(0.4962525202, rel=1e-8)
    assert FLOAT32.loss(KTO()) == pytest.approx(0.4962525202, rel=1e-5)


def test_worked_loss_with_class_weights():
    assert LABELS.loss(KTO(undesirable_weight=1.33)) == pytest.approx(0.5782371628, rel=1e-8)


def test_worked_metrics():
    metrics = LABELS.evaluate(KTO()).metrics
    expected = {"kl": 0.075, "rewards/chosen": 0.025, "rewards/rejected": -0.005, "rewards/margins": 0.03}
    assert {name: float(metrics[name]) for name in expected} == pytest.approx(expected, rel=1e-8)


def test_with_a_reference_point_of_0_it_is_the_unpaired_apo_zero():
    assert WITHOUT_KL.loss(KTO()) == pytest.approx(0.4962528419, rel=1e-8)
    sigmoids = torch.sigmoid(0.1 * torch.tensor(LABELS.log_ratios, dtype=torch.float64))
    chosen, rejected = 1 - sigmoids[[0, 2]], sigmoids[[1, 3]]
    assert WITHOUT_KL.loss(KTO()) == pytest.approx((chosen.sum() + rejected.sum()).item() / 4, rel=1e-12)


def test_the_reference_point_is_clamped_after_the_mean():
    negative = LabelFixture(labels=(1, 0), log_ratios=(0.5, -0.5), mismatched=(-0.3, -0.1))
    assert negative.evaluate(KTO()).metric("kl") == 0
    mixed = LabelFixture(labels=(1, 0), log_ratios=(0.5, -0.5), mismatched=(-0.1, 0.3))
    assert mixed.evaluate(KTO()).metric("kl") == pytest.approx(0.1, rel=1e-12)


def test_the_reference_point_is_that_of_all_rows_whatever_the_ranks_hold():
    """If ranks had four and two rows, the mean of their means would be 0.0875."""
    ratios_B = torch.tensor([0.2, -0.1, 0.15, 0.05, -0.3, 0.5], dtype=torch.float64)
    batch = Batch.from_labels(torch.ones(6, 1), torch.ones(6), torch.zeros(6, 1), ratios_B)
    assert KTO().prepare(batch).offsets_B == pytest.approx([0.08333333333] * 6, rel=1e-9)


def test_a_row_without_a_mismatched_answer_is_not_counted():
    ratios_B = torch.tensor([0.2, float("nan"), 0.4])
    batch = Batch.from_labels(torch.ones(3, 1), torch.ones(3), torch.zeros(3, 1), ratios_B)
    assert KTO().prepare(batch).offsets_B == pytest.approx([0.3] * 3)


def test_the_reference_point_has_no_gradient():
    ratios_B = torch.tensor([0.2, 0.1], requires_grad=True)
    batch = Batch.from_labels(torch.ones(2, 1), torch.tensor([1, 0]), torch.zeros(2, 1), ratios_B)
    loss, _ = KTO().loss(torch.full((2, 1), -0.5, requires_grad=True), batch, count_totals(batch))
    assert torch.autograd.grad(loss, ratios_B, allow_unused=True) == (None,)


@catalogue("label", [0, 1])
def test_one_class_alone_is_fine(label):
    step = replace(LABELS, labels=(label,) * 4).evaluate(KTO())
    assert step.loss.isfinite()
    assert step.gradient_BT[LABELS.batch.completion_mask_BT].sign().unique().tolist() == [-1 if label else 1]


@catalogue("log_ratio", [1e4, -1e4, 50.0, -50.0])
def test_far_from_the_reference_everything_stays_finite(log_ratio):
    step = replace(LABELS, log_ratios=(log_ratio, -log_ratio, log_ratio, -log_ratio)).evaluate(KTO())
    assert step.loss.isfinite()
    assert step.gradient_BT[LABELS.batch.completion_mask_BT].isfinite().all()


def test_rows_are_counted_by_class_and_empty_ones_not_at_all():
    batch = replace(LABELS, labels=(1, 1, 1, 0)).batch
    batch.completion_mask_BT[0] = False
    totals = count_totals(batch)
    assert (totals.sequences, totals.desirable, totals.undesirable) == (3, 2, 1)


def test_a_step_of_one_row_is_refused():
    alone = LabelFixture(labels=(1,), log_ratios=(0.8,), mismatched=(0.2,))
    with pytest.raises(ConfigError, match=r"(?s)step of one row.*at least 2 rows"):
        alone.loss(KTO())


@catalogue("mismatched", [None, (float("nan"),) * 4, (0.1, 0.2, float("inf"), 0.3)])
def test_missing_or_infinite_mismatched_ratios_are_refused(mismatched):
    with pytest.raises(ConfigError, match=r"(?s)without finite log-ratios of mismatched answers.*unpaired APO-zero"):
        replace(LABELS, mismatched=mismatched).loss(KTO())


def test_a_missing_reference_is_refused():
    batch = Batch.from_labels(torch.ones(2, 1), torch.ones(2), None, torch.zeros(2))
    with pytest.raises(ConfigError, match=r"no reference log-probabilities"):
        KTO().loss(torch.zeros(2, 1), batch, count_totals(batch))


def test_rows_without_labels_are_refused():
    batch = replace(LABELS.batch, labels_B=None)
    with pytest.raises(ConfigError, match=r"(?s)without labels.*Batch.from_labels"):
        KTO().loss(LABELS.logprobs_BT, batch, count_totals(batch))


@catalogue(
    "labels, message",
    [([1, -1], r"labels_B must be 1 \(desirable\) or 0"), ([1, 0, 1], r"labels_B has shape \[3\], .* 2 rows")],
)
def test_labels_that_cannot_be_meant_are_refused(labels, message):
    with pytest.raises(ValueError, match=message):
        Batch.from_labels(torch.ones(2, 1), torch.tensor(labels))


def test_a_negative_weight_is_refused():
    with pytest.raises(ConfigError, match=r"kto.desirable_weight = -1; allowed: greater than or equal to 0"):
        KTO(desirable_weight=-1)
