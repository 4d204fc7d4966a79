"""On-policy distillation: worked advantages, the exact gradient of the reverse KL, floors and refusals."""

from dataclasses import replace

import pytest
import torch
from tests.catalogue import catalogue
from torch import Tensor

from posttrain.algorithms import Distillation
from posttrain.errors import ConfigError
from posttrain.functional.kl import k3
from posttrain.types import Batch, Experience, Outputs, Totals

STUDENT = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64)
TEACHER = torch.tensor([0.5, 0.5, -0.5], dtype=torch.float64)
REVERSE_KL = [0.2226954265, -0.162803402, -0.05989202454]
FORWARD_KL = [0.2429221575, -0.1775903272, -0.06533183033]


def one_row(policy_T: Tensor, teacher_T: Tensor) -> Experience:
    return Experience.from_rewards(
        torch.zeros(1, 1, dtype=torch.float64),
        completion_mask_BT=torch.ones(1, len(policy_T)),
        old_logprobs_BT=policy_T[None].detach(),
        teacher_logprobs_BT=teacher_T[None],
    )


def expected_gradient(algorithm: Distillation) -> Tensor:
    """Return the expected gradient of one token's loss with respect to the student's logits, over the vocabulary."""
    logits_V = STUDENT.clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for v in range(3):
        logprobs_11 = logits_V.log_softmax(dim=-1)[v].reshape(1, 1)
        experience = one_row(logprobs_11[0], TEACHER.log_softmax(dim=-1)[v : v + 1])
        loss, _ = algorithm.loss(logprobs_11, algorithm.to_batch(experience), Totals(tokens=1, sequences=1, rows=1))
        total = total + logprobs_11[0, 0].exp().detach() * loss
    return torch.autograd.grad(total, logits_V)[0]


def test_worked_advantages():
    """The sampled tokens are 0, 2 and 1 of a vocabulary of three."""
    tokens = [0, 2, 1]
    experience = one_row(STUDENT.log_softmax(dim=-1)[tokens], TEACHER.log_softmax(dim=-1)[tokens])
    expected = [-0.4543888396, 0.5456111604, 0.5456111604]
    assert Distillation().advantages(experience).flatten().tolist() == pytest.approx(expected, rel=1e-8)
    halved = Distillation(coef=0.5).advantages(experience)
    assert halved.flatten().tolist() == pytest.approx([x / 2 for x in expected], rel=1e-8)


@catalogue("algorithm", [Distillation(), Distillation(clip_low=0.2, clip_high=0.2)], ids=["plain", "clip"])
def test_the_expected_gradient_is_that_of_the_reverse_kl(algorithm: Distillation):
    logits_V = STUDENT.clone().requires_grad_()
    student_V, teacher_V = logits_V.log_softmax(dim=-1), TEACHER.log_softmax(dim=-1)
    reverse_kl = (student_V.exp() * (student_V - teacher_V)).sum()
    assert reverse_kl.item() == pytest.approx(0.1196297954, rel=1e-8)
    exact_V = torch.autograd.grad(reverse_kl, logits_V)[0]
    torch.testing.assert_close(expected_gradient(algorithm), exact_V, rtol=1e-10, atol=1e-12)
    assert exact_V.tolist() == pytest.approx(REVERSE_KL, rel=1e-8)


def test_k3_would_have_the_gradient_of_the_forward_kl_and_as_a_reward_of_neither():
    """This is why only k1 is offered (RULE 48)."""
    logits_V = STUDENT.clone().requires_grad_()
    student_V, teacher_V = logits_V.log_softmax(dim=-1), TEACHER.log_softmax(dim=-1)
    probabilities_V = student_V.exp().detach()
    k3_V = k3(student_V, teacher_V)
    assert k3_V[[0, 2, 1]].tolist() == pytest.approx([0.08922467554, 0.1800515565, 0.1800515565], rel=1e-8)
    differentiated = torch.autograd.grad((probabilities_V * k3_V).sum(), logits_V, retain_graph=True)[0]
    assert differentiated.tolist() == pytest.approx(FORWARD_KL, rel=1e-8)
    as_reward = torch.autograd.grad((probabilities_V * k3_V.detach() * student_V).sum(), logits_V)[0]
    assert as_reward.tolist() == pytest.approx([-0.02022673099, 0.01478692521, 0.005439805782], rel=1e-8)


def test_worked_loss_and_metrics(t, assert_ragged):
    """The reference is the teacher, so A = ref - old. The loss is the mean of -A * logprobs over the ten tokens."""
    experience = Experience.from_rewards(
        torch.zeros(1, 4, dtype=torch.float64),
        completion_mask_BT=t.mask_BT,
        old_logprobs_BT=t.old_BT,
        teacher_logprobs_BT=t.ref_BT,
    )
    logprobs_BT = t.logprobs_BT
    loss, metrics = Distillation().loss(logprobs_BT, Distillation().to_batch(experience), t.totals)
    loss.backward()
    assert_ragged(logprobs_BT.grad, [[0.01, -0.02, 0.005], [-0.01, 0.01], [0.01, -0.01, 0.02, 0], [-0.06]])
    assert loss.item() == pytest.approx((logprobs_BT.grad * logprobs_BT)[t.mask_BT].sum().item(), rel=1e-8)
    assert float(metrics["teacher/reverse_kl"]) == pytest.approx(0.072, rel=1e-8)
    assert float(metrics["teacher/floored_fraction"]) == 0


def test_a_student_that_is_its_teacher_learns_nothing(t):
    experience = Experience.from_rewards(
        torch.zeros(1, 4, dtype=torch.float64),
        completion_mask_BT=t.mask_BT,
        old_logprobs_BT=t.old_BT,
        teacher_logprobs_BT=t.old_BT,
    )
    assert (Distillation().advantages(experience) == 0).all()


@pytest.mark.parametrize(("coef", "floor"), [(0.5, -4.0), (0.7, -2.1), (0.9, -3.3), (1.3, -7.7)])
def test_a_floored_token_is_counted_whatever_the_rounding(coef, floor):
    experience = one_row(torch.tensor([-0.5], dtype=torch.float32), torch.tensor([-torch.inf], dtype=torch.float32))
    algorithm = Distillation(floor=floor, coef=coef)
    outputs = Outputs(logprobs_BT=torch.tensor([[-0.5]]))
    _, metrics = algorithm.loss(outputs, algorithm.to_batch(experience), Totals(tokens=1, sequences=1, rows=1))
    assert float(metrics["teacher/floored_fraction"]) == 1.0


def test_a_token_that_the_teacher_never_writes_counts_as_the_floor_and_is_counted():
    experience = one_row(torch.tensor([-0.5, -0.5]), torch.tensor([-torch.inf, -0.6]))
    algorithm = Distillation(floor=-4.0, coef=0.5)
    batch = algorithm.to_batch(experience)
    assert algorithm.advantages(experience).flatten().tolist() == pytest.approx([-2.0, -0.05])
    loss, metrics = algorithm.loss(
        Outputs(logprobs_BT=torch.tensor([[-0.5, -0.5]])), batch, Totals(tokens=2, sequences=1, rows=1)
    )
    assert loss.isfinite()
    assert float(metrics["teacher/floored_fraction"]) == 0.5
    assert float(metrics["teacher/reverse_kl"]) == pytest.approx((4.0 + 0.1) / 2)


def test_rewards_change_nothing():
    experience = one_row(STUDENT.log_softmax(dim=-1), TEACHER.log_softmax(dim=-1))
    rewarded = replace(experience, rewards_PG=torch.tensor([[5.0]], dtype=torch.float64))
    assert torch.equal(Distillation().advantages(rewarded), Distillation().advantages(experience))
    assert not Distillation.learns_from_rewards


def test_the_second_update_of_a_batch_keeps_the_advantage_and_clips_the_ratio(t):
    """The ratio rose to 1.35 where the advantage is positive. It is clipped at 1.2, so there is no gradient."""
    batch = Batch(
        completion_mask_BT=t.mask_BT,
        advantages_BT=torch.ones_like(t.old_BT),
        old_logprobs_BT=t.old_BT,
        groups_B=t.batch().groups_B,
    )
    logprobs_BT = t.logprobs_BT
    Distillation(clip_low=0.2, clip_high=0.2).loss(logprobs_BT, batch, t.totals)[0].backward()
    assert logprobs_BT.grad[0, 1].item() == 0
    assert logprobs_BT.grad[0, 0].item() == pytest.approx(-1.051271096 / 10, rel=1e-8)


@catalogue("divergence", ["forward_kl", "k3", "gjsd"])
def test_a_divergence_that_sampled_tokens_cannot_teach_is_refused(divergence):
    with pytest.raises(ConfigError, match=rf"(?s)divergence = '{divergence}'.*allowed: reverse_kl"):
        Distillation(divergence=divergence)


def test_without_a_teacher_it_says_what_to_pass():
    experience = replace(one_row(STUDENT, TEACHER), teacher_logprobs_BT=None)
    with pytest.raises(ConfigError, match=r"(?s)teacher or old log-probabilities are missing.*Pass both"):
        Distillation().advantages(experience)
