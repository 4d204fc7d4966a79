"""BCO: the worked number, the running shift and how a run keeps it, and both reductions."""

from dataclasses import asdict, replace

import pytest
import torch
from tests.algorithms.preference_data import LABELS, LabelFixture, evaluate
from tests.catalogue import catalogue

from posttrain.algorithms.bco import BCO, RunningShift
from posttrain.errors import ConfigError
from posttrain.types import Batch, count_totals

UNBALANCED = LabelFixture(labels=(1, 1, 1, 0), log_ratios=(0.8, -0.3, 0.5, -0.5), mismatched=None)


def seen(fixture: LabelFixture) -> Batch:
    """Return the batch with the policy's log-probabilities before the update, like in a run."""
    return replace(fixture.batch, current_logprobs_BT=fixture.logprobs_BT.detach())


def test_worked_loss():
    """The shift of these four answers is 0.01."""
    assert LABELS.loss(BCO(beta=0.1)) == pytest.approx(0.685990878, rel=1e-8)
    assert LABELS.evaluate(BCO(beta=0.1)).metric("delta") == pytest.approx(0.01, rel=1e-8)
    assert replace(LABELS, dtype=torch.float32).loss(BCO(beta=0.1)) == pytest.approx(0.685990878, rel=1e-5)


def test_the_shift_is_the_mean_of_the_class_means_and_not_of_all_rewards():
    """The mean of all rewards together would be 0.0125."""
    assert UNBALANCED.evaluate(BCO(beta=0.1)).metric("delta") == pytest.approx(-0.008333333333, rel=1e-8)


def test_class_means_are_twice_the_examples_on_balanced_data():
    assert LABELS.loss(BCO(reduction="class_means")) == pytest.approx(2 * LABELS.loss(BCO()), rel=1e-12)


def test_class_means_weigh_a_rare_class_as_much_as_a_frequent_one():
    gradient_BT = UNBALANCED.evaluate(BCO(beta=1e-6, reduction="class_means")).gradient_BT
    of_row_B = gradient_BT[:, 1]  # beta is so small that each answer's slope is 1/2
    assert of_row_B[3].item() == pytest.approx(-3 * of_row_B[0].item(), rel=1e-4)


def test_the_shift_runs_over_all_steps():
    algorithm = BCO(beta=0.1)
    state = algorithm.next_state(algorithm.initial_state(), seen(LABELS))
    assert state.delta == pytest.approx(0.01, rel=1e-8)
    state = algorithm.next_state(state, seen(UNBALANCED))
    chosen, rejected = (0.08 - 0.03 + 0.08 - 0.03 + 0.05) / 5, (-0.05 + 0.04 - 0.05) / 3
    assert state.delta == pytest.approx((chosen + rejected) / 2, rel=1e-8)
    batch = algorithm.prepare(algorithm.to_batch(seen(UNBALANCED), state))
    assert evaluate(algorithm, UNBALANCED.logprobs_BT, batch).metric("delta") == pytest.approx(state.delta, rel=1e-12)


def test_the_state_is_plain_numbers_and_survives_a_checkpoint():
    algorithm = BCO()
    state = algorithm.next_state(algorithm.initial_state(), seen(LABELS))
    assert RunningShift(**asdict(state)) == state
    assert all(isinstance(number, float) for number in asdict(state).values())


def test_a_run_that_starts_at_the_reference_starts_with_no_shift():
    at_reference = replace(LABELS, log_ratios=(0.0,) * 4)
    step = at_reference.evaluate(BCO())
    assert step.metric("delta") == 0
    assert step.loss.item() == pytest.approx(0.6931471806, rel=1e-9)


def test_a_class_that_was_not_seen_yet_counts_as_0():
    only_desirable = replace(LABELS, labels=(1, 1, 1, 1))
    assert only_desirable.evaluate(BCO(beta=0.1)).metric("delta") == pytest.approx(0.1 * 0.1 / 2, rel=1e-8)


def test_the_shift_has_no_gradient():
    """A change of one answer changes only its own reward, so each gradient has the sign of its label."""
    gradient_BT = LABELS.evaluate(BCO(beta=0.1)).gradient_BT
    assert gradient_BT[:, 1].sign().tolist() == [-1, 1, -1, 1]
    rewards_B = 0.1 * torch.tensor(LABELS.log_ratios, dtype=torch.float64)
    expected_B = -torch.tensor([1.0, -1, 1, -1]) * torch.sigmoid(-torch.tensor([1.0, -1, 1, -1]) * (rewards_B - 0.01))
    torch.testing.assert_close(gradient_BT[:, 1], 0.1 / 4 * expected_B, rtol=1e-8, atol=0)


@catalogue("log_ratio", [1e5, -1e5])
def test_far_from_the_reference_everything_stays_finite(log_ratio):
    step = replace(LABELS, log_ratios=(log_ratio, -log_ratio, log_ratio, -log_ratio)).evaluate(BCO())
    assert step.loss.isfinite()
    assert step.gradient_BT[LABELS.batch.completion_mask_BT].isfinite().all()


def test_a_missing_reference_is_refused():
    batch = Batch.from_labels(torch.ones(2, 1), torch.ones(2))
    with pytest.raises(ConfigError, match=r"no reference log-probabilities"):
        BCO().loss(torch.zeros(2, 1), batch, count_totals(batch))


def test_an_unknown_reduction_is_refused():
    with pytest.raises(ConfigError, match=r"bco.reduction = 'sum'; allowed: 'examples' or 'class_means'"):
        BCO(reduction="sum")  # type: ignore[arg-type]
