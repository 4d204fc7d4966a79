"""What must not matter does not matter, for every algorithm: padding, splits, order, constants, and what a mask hides.

Also: gradients agree with finite differences, and metrics of the parts merge into those of the step.
"""

import math
from dataclasses import fields, replace
from functools import reduce

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.variants import (
    COUNTING_MASKED,
    DIVIDED_BY_STD,
    GROUP_RELATIVE,
    STRAIGHT_THROUGH,
    WEIGHED_BY_THE_POLICY,
)
from tests.algorithms.variants import VARIANTS as ALGORITHMS
from tests.catalogue import catalogue, examples
from torch import Tensor

from posttrain.algorithms import RLOO, Algorithm, DrGRPO, PolicyGradient
from posttrain.types import Batch, Experience, Metrics, Outputs, Totals, count_totals

NAN = float("nan")
P, G, T = 3, 4, 7

every_algorithm = catalogue("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
group_relative = catalogue("algorithm", [ALGORITHMS[n] for n in GROUP_RELATIVE], ids=GROUP_RELATIVE)
anything = st.integers(0, 10_000)
few_examples = examples(2, 8)  # of each of 76 variants: the data of all of them together are many


def make_experience(seed: int = 0) -> Experience:
    """Three prompts of four completions: with holes, one empty, one without a reward, and nan around them.

    Log ratios keep away from the kinks of the clips at 0.8, 1.2, 1.28 and 1.5.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = P * G

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    mask_BT = uniform(rows, T) < 0.7
    mask_BT[:, 0] = False
    mask_BT[5] = False
    log_ratios = torch.tensor([-0.6, -0.1, 0.02, 0.05, 0.3, 0.9], dtype=torch.float64)
    old_BT = -2 * uniform(rows, T)
    outside = ~mask_BT
    rewards_KPG = uniform(2, P, G)
    rewards_PG = rewards_KPG.mean(dim=0)
    rewards_PG[2, 1] = NAN
    return Experience.from_rewards(
        rewards_PG,
        rewards_KPG=rewards_KPG,
        greedy_rewards_P=uniform(P),
        values_BT=uniform(rows, T).masked_fill(outside, NAN),
        teacher_logprobs_BT=(old_BT + uniform(rows, T) - 0.5).masked_fill(outside, NAN),
        completion_mask_BT=mask_BT,
        old_logprobs_BT=old_BT.masked_fill(outside, NAN),
        sampling_logprobs_BT=(old_BT + log_ratios[(6 * uniform(rows, T)).long()]).masked_fill(outside, -torch.inf),
        ref_logprobs_BT=(old_BT + 0.4 * uniform(rows, T) - 0.2).masked_fill(outside, torch.inf),
        squared_probs_BT=((2 * old_BT).exp() + 0.2 * uniform(rows, T)).masked_fill(outside, NAN),
    )


def make_outputs(experience: Experience) -> Outputs:
    """The policy has moved from `old` to where `sampling_logprobs` stands in for it; leaves with gradient."""
    assert experience.sampling_logprobs_BT is not None
    logprobs_BT = experience.sampling_logprobs_BT.clone().requires_grad_()
    entropy_BT = (1 + logprobs_BT.detach() ** 2).requires_grad_()
    values_BT = (0.3 * logprobs_BT.detach() + 0.4).requires_grad_()
    return Outputs(logprobs_BT=logprobs_BT, entropy_BT=entropy_BT, values_BT=values_BT)


def make_batch(algorithm: Algorithm, experience: Experience) -> Batch:
    if isinstance(algorithm, PolicyGradient):
        batch = algorithm.to_batch(experience, algorithm.initial_state())
    else:
        batch = Batch.from_experience(experience)
    assert batch.sampling_logprobs_BT is not None
    entropy_BT = 1 + batch.sampling_logprobs_BT**2
    looked = replace(batch, current_logprobs_BT=batch.sampling_logprobs_BT, current_entropy_BT=entropy_BT)
    return algorithm.prepare(looked)


def row(outputs: Outputs, index: Tensor | list[int]) -> Outputs:
    assert outputs.entropy_BT is not None
    assert outputs.values_BT is not None
    return Outputs(
        logprobs_BT=outputs.logprobs_BT[index],
        entropy_BT=outputs.entropy_BT[index],
        values_BT=outputs.values_BT[index],
    )


def gradients(outputs: Outputs, loss: Tensor) -> Tensor:
    """`[3, B, T]`: with respect to log-probabilities, entropies and values."""
    leaves = (outputs.logprobs_BT, outputs.entropy_BT, outputs.values_BT)
    found = torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True)  # type: ignore[arg-type]
    return torch.stack([torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)])  # type: ignore[arg-type]


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def assert_same_metrics(actual: Metrics, expected: Metrics) -> None:
    assert {name: float(m) for name, m in actual.items()} == pytest.approx(
        {name: float(m) for name, m in expected.items()}, rel=1e-10, abs=1e-12
    )


# Splits and order


@every_algorithm
@few_examples
@given(seed=anything, parts=st.integers(1, 12), data=st.data())
def test_any_split_sums_to_the_same_loss_gradient_and_metrics(algorithm: Algorithm, seed: int, parts: int, data):
    """Rows are dealt out at random: uneven parts, groups torn apart, parts that hold nothing."""
    experience = make_experience(seed)
    outputs, batch = make_outputs(experience), make_batch(algorithm, experience)
    totals = count_totals(batch)
    whole, metrics = algorithm.loss(outputs, batch, totals)

    owner = data.draw(st.lists(st.integers(0, parts - 1), min_size=P * G, max_size=P * G))
    dealt = [[b for b in range(P * G) if owner[b] == part] for part in range(parts)]
    losses, part_metrics = zip(
        *(algorithm.loss(row(outputs, rows), batch.rows(rows), totals) for rows in dealt if rows), strict=True
    )
    assert_same(torch.stack(losses).sum(), whole)
    assert_same(gradients(outputs, torch.stack(losses).sum()), gradients(outputs, whole))
    assert_same_metrics(reduce(merge, part_metrics), metrics)


def merge(a: Metrics, b: Metrics) -> Metrics:
    both = {name: a[name].merge(b[name]) for name in a.keys() & b.keys()}  # type: ignore[arg-type]
    return a | b | both


@every_algorithm
@few_examples
@given(seed=anything, order=st.permutations(range(P * G)))
def test_the_order_of_rows_does_not_matter(algorithm: Algorithm, seed: int, order: list[int]):
    experience = make_experience(seed)
    outputs, batch = make_outputs(experience), make_batch(algorithm, experience)
    totals = count_totals(batch)
    loss, metrics = algorithm.loss(outputs, batch, totals)
    shuffled, shuffled_metrics = algorithm.loss(row(outputs, order), batch.rows(order), totals)
    assert_same(shuffled, loss)
    assert_same(gradients(outputs, shuffled), gradients(outputs, loss))
    assert_same_metrics(shuffled_metrics, metrics)


def select(experience: Experience, prompts: list[int], members: list[int]) -> tuple[Experience, Tensor]:
    """The experience with its prompts, and the completions of each, in another order; and where each row came from."""
    index_B = torch.tensor([p * G + g for p in prompts for g in members])
    tensors = {f.name: getattr(experience, f.name) for f in fields(experience)}
    by_row = {n: v[index_B] for n, v in tensors.items() if isinstance(v, Tensor) and n.endswith("_BT")}
    by_group = {n: v[prompts][:, members] for n, v in tensors.items() if isinstance(v, Tensor) and n.endswith("_PG")}
    by_reward = {"rewards_KPG": experience.rewards_KPG[:, prompts][:, :, members]}  # type: ignore[index]
    by_prompt = {"greedy_rewards_P": experience.greedy_rewards_P[prompts]}  # type: ignore[index]
    return replace(experience, **by_row, **by_group | by_reward | by_prompt), index_B


@every_algorithm
@few_examples
@given(seed=anything, prompts=st.permutations(range(P)), members=st.permutations(range(G)))
def test_advantages_follow_their_completions(algorithm: Algorithm, seed: int, prompts: list[int], members: list[int]):
    if not isinstance(algorithm, PolicyGradient):
        return
    experience = make_experience(seed)
    moved, index_B = select(experience, prompts, members)
    assert_same(algorithm.advantages(moved), algorithm.advantages(experience)[index_B])


# Padding and masks


def pad_columns(x_BT: Tensor, columns: int) -> Tensor:
    fill = False if x_BT.dtype == torch.bool else NAN
    return torch.nn.functional.pad(x_BT, (0, columns), value=fill)


@every_algorithm
@few_examples
@given(seed=anything, columns=st.integers(1, 3))
def test_padding_columns_do_not_matter(algorithm: Algorithm, seed: int, columns: int):
    experience = make_experience(seed)
    outputs, batch = make_outputs(experience), make_batch(algorithm, experience)
    loss, metrics = algorithm.loss(outputs, batch, count_totals(batch))

    wide = {
        f.name: pad_columns(getattr(experience, f.name), columns)
        for f in fields(experience)
        if f.name.endswith("_BT") and getattr(experience, f.name) is not None
    }
    wider = replace(experience, **wide)
    wide_outputs = make_outputs(wider)
    wide_batch = make_batch(algorithm, wider)
    wide_loss, wide_metrics = algorithm.loss(wide_outputs, wide_batch, count_totals(wide_batch))
    assert_same(wide_loss, loss)
    assert_same(gradients(wide_outputs, wide_loss)[:, :, :T], gradients(outputs, loss))
    assert (gradients(wide_outputs, wide_loss)[:, :, T:] == 0).all()
    assert_same_metrics(wide_metrics, metrics)


@catalogue("name", ALGORITHMS)
def test_rows_with_empty_masks_do_not_matter(name: str):
    algorithm, experience = ALGORITHMS[name], make_experience()
    outputs, batch = make_outputs(experience), make_batch(algorithm, experience)
    trained = batch.completion_mask_BT.any(dim=-1).nonzero().flatten()
    assert len(trained) < P * G
    loss, metrics = algorithm.loss(outputs, batch, count_totals(batch))
    dense = batch.rows(trained)
    totals = count_totals(dense)
    if name in COUNTING_MASKED:
        totals = replace(totals, rows=P * G)
    dense_loss, dense_metrics = algorithm.loss(row(outputs, trained), dense, totals)
    assert_same(dense_loss, loss)
    assert_same(gradients(outputs, dense_loss), gradients(outputs, loss))
    assert_same_metrics(dense_metrics, metrics)


@every_algorithm
@catalogue("hidden", [NAN, torch.inf, -torch.inf, 0.0, 1e30])
def test_what_stands_outside_the_mask_is_never_read(algorithm: Algorithm, hidden: float):
    """Everywhere at once: log-probabilities, entropies, advantages. The gradient there is exactly 0."""

    def evaluate(fill: float) -> tuple[Tensor, Tensor]:
        experience = make_experience()
        outside = ~experience.scored_mask_BT
        for name in ("old_logprobs_BT", "sampling_logprobs_BT", "ref_logprobs_BT", "teacher_logprobs_BT"):
            experience = replace(experience, **{name: getattr(experience, name).masked_fill(outside, fill)})
        outputs, batch = make_outputs(experience), make_batch(algorithm, experience)
        if batch.advantages_BT is not None:
            batch = replace(batch, advantages_BT=batch.advantages_BT.masked_fill(outside, fill))
        loss, _ = algorithm.loss(outputs, batch, count_totals(batch))
        assert (gradients(outputs, loss)[:, outside] == 0).all()
        return loss, gradients(outputs, loss)

    for actual, expected in zip(evaluate(hidden), evaluate(-1.0), strict=True):
        assert torch.equal(actual, expected)


@every_algorithm
def test_an_all_masked_batch_is_zero_and_not_nan(algorithm: Algorithm):
    experience = make_experience()
    experience = replace(experience, completion_mask_BT=torch.zeros_like(experience.completion_mask_BT))
    outputs, batch = make_outputs(experience), make_batch(algorithm, experience)
    totals = count_totals(batch)
    loss, _ = algorithm.loss(outputs, batch, totals)
    assert totals == Totals(tokens=0, sequences=0, rows=P * G)
    assert loss.item() == 0
    assert (gradients(outputs, loss) == 0).all()


@every_algorithm
def test_nothing_scored_is_zero_and_not_nan(algorithm: Algorithm):
    experience = make_experience()
    experience = replace(
        experience,
        rewards_PG=torch.full_like(experience.rewards_PG, NAN),
        scored_PG=torch.zeros_like(experience.scored_PG),
    )
    outputs, batch = make_outputs(experience), make_batch(algorithm, experience)
    loss, _ = algorithm.loss(outputs, batch, count_totals(batch))
    assert loss.item() == 0
    assert (gradients(outputs, loss) == 0).all()


@every_algorithm
@catalogue("difference", [100.0, -100.0])
@catalogue("dtype", [torch.float32, torch.float64])
def test_a_log_ratio_of_100_stays_finite(algorithm: Algorithm, difference: float, dtype: torch.dtype):
    experience = make_experience()
    assert experience.old_logprobs_BT is not None
    experience = replace(
        experience,
        rewards_PG=experience.rewards_PG.to(dtype),
        old_logprobs_BT=experience.old_logprobs_BT.to(dtype),
        ref_logprobs_BT=experience.old_logprobs_BT.to(dtype) - difference,
        sampling_logprobs_BT=experience.old_logprobs_BT.to(dtype) + difference,
    )
    outputs, batch = make_outputs(experience), make_batch(algorithm, experience)
    loss, metrics = algorithm.loss(outputs, batch, count_totals(batch))
    assert loss.isfinite()
    assert gradients(outputs, loss).isfinite().all()
    if batch.completion_mask_BT.any():  # not all of it rejected: a mean over nothing is nan
        assert all(math.isfinite(float(metric)) for metric in metrics.values())


def at_start(experience: Experience) -> tuple[Outputs, Experience]:
    """The policy stands where the update starts, and has sampled by itself."""
    outputs = make_outputs(replace(experience, sampling_logprobs_BT=experience.old_logprobs_BT))
    return outputs, replace(experience, sampling_logprobs_BT=experience.old_logprobs_BT)


@every_algorithm
@few_examples
@given(seed=anything)
def test_on_policy_the_old_log_probabilities_may_be_left_out(algorithm: Algorithm, seed: int):
    """RULE 6: the same loss, gradient and metrics whether they were recomputed or stand for the policy itself."""
    outputs, experience = at_start(make_experience(seed))
    batch = make_batch(algorithm, experience)
    loss, metrics = algorithm.loss(outputs, batch, count_totals(batch))
    implied, implied_metrics = algorithm.loss(outputs, replace(batch, old_logprobs_BT=None), count_totals(batch))
    assert_same(implied, loss)
    assert_same(gradients(outputs, implied), gradients(outputs, loss))
    shared = implied_metrics.keys() & metrics.keys()
    assert_same_metrics({name: implied_metrics[name] for name in shared}, {name: metrics[name] for name in shared})
    assert metrics.keys() - shared <= {"objective/kl"}, "of the KL in the reward, which reads the old ones themselves"


@every_algorithm
def test_on_policy_no_ratio_is_clipped_and_no_weight_is_cut(algorithm: Algorithm):
    outputs, experience = at_start(make_experience())
    batch = make_batch(algorithm, experience)
    _, metrics = algorithm.loss(outputs, batch, count_totals(batch))
    zero = ("clip_ratio/", "policy/out_of_band", "policy/dual_clip", "policy/weight_clip", "is/masked", "is/truncated")
    assert {name: float(m) for name, m in metrics.items() if name.startswith(zero) and float(m) != 0} == {}
    assert {float(m) for name, m in metrics.items() if name in ("policy/ratio_min", "policy/ratio_max")} <= {1.0}
    assert float(metrics.get("mismatch/abs_max", torch.zeros(()))) == 0


# Rewards


@group_relative
@few_examples
@given(seed=anything, shift=st.floats(-100, 100), scale=st.floats(0.1, 10))
def test_shifted_rewards_are_the_same_and_scaled_rewards_scale(
    algorithm: PolicyGradient, seed: int, shift: float, scale: float
):
    experience = make_experience(seed)
    advantages_BT = algorithm.advantages(experience)
    shift_P1 = shift * torch.tensor([[1.0], [0.0], [-0.5]], dtype=torch.float64)
    shifted_BT = algorithm.advantages(replace(experience, rewards_PG=experience.rewards_PG + shift_P1))
    scaled_BT = algorithm.advantages(replace(experience, rewards_PG=experience.rewards_PG * scale))
    torch.testing.assert_close(shifted_BT, advantages_BT, rtol=1e-9, atol=1e-9)
    if algorithm.key in DIVIDED_BY_STD:  # divided by the standard deviation: the same, but for the 1e-6
        torch.testing.assert_close(scaled_BT, advantages_BT, rtol=1e-3, atol=0)
    else:
        torch.testing.assert_close(scaled_BT, scale * advantages_BT, rtol=1e-9, atol=1e-12)


@group_relative
@catalogue("group_size", [2, 3, 6, 7, 16, 33])
@catalogue("reward", [0.1, 0.9, 1 / 3, 100.7, -1e6, 0.0])
def test_equal_float32_rewards_get_exactly_zero(algorithm: PolicyGradient, group_size: int, reward: float):
    """Although their float32 mean may be another number."""
    experience = Experience.from_rewards(
        torch.full((2, group_size), reward), completion_mask_BT=torch.ones(2 * group_size, 1)
    )
    assert (algorithm.advantages(experience) == 0).all()


@group_relative
@few_examples
@given(seed=anything)
def test_the_advantages_of_a_group_sum_to_zero(algorithm: PolicyGradient, seed: int):
    rewards_PG = make_experience(seed).rewards_PG
    experience = Experience.from_rewards(rewards_PG, completion_mask_BT=torch.ones(P * G, 1))
    sums_P = algorithm.advantages(experience).reshape(P, G).sum(dim=-1)
    torch.testing.assert_close(sums_P, torch.zeros_like(sums_P), rtol=0, atol=1e-12)


@few_examples
@given(seed=anything)
def test_rloo_is_the_centred_reward_scaled_by_the_scored_of_the_group(seed: int):
    """G / (G - 1), where G counts the completions that have a reward."""
    experience = make_experience(seed)
    scored_P1 = experience.scored_PG.double().sum(dim=-1, keepdim=True)
    factor_B1 = (scored_P1 / (scored_P1 - 1)).expand(P, G).reshape(-1, 1)
    assert_same(RLOO().advantages(experience), factor_B1 * DrGRPO().advantages(experience))


# Gradients


PATHWISE = [name for name, a in ALGORITHMS.items() if "corrected" not in name and a.key not in STRAIGHT_THROUGH]
PATHWISE = [name for name in PATHWISE if name not in WEIGHED_BY_THE_POLICY]


@catalogue("algorithm", [ALGORITHMS[name] for name in PATHWISE], ids=PATHWISE)
def test_gradients_agree_with_finite_differences(algorithm: Algorithm):
    experience = make_experience()
    outputs, batch = make_outputs(experience), make_batch(algorithm, experience)
    totals = count_totals(batch)
    gradient_3BT = gradients(outputs, algorithm.loss(outputs, batch, totals)[0])
    leaves = [outputs.logprobs_BT.detach(), outputs.entropy_BT.detach(), outputs.values_BT.detach()]  # type: ignore[union-attr]
    scale = gradient_3BT.abs().max().item()

    for which, b, t in (gradient_3BT.abs() > 1e-3 * scale).nonzero()[::5].tolist():
        values = []
        for step in (1e-5, -1e-5):
            moved = [leaf.clone() for leaf in leaves]
            moved[which][b, t] += step
            values.append(algorithm.loss(Outputs(*moved), batch, totals)[0].item())
        difference = (values[0] - values[1]) / 2e-5
        assert difference == pytest.approx(gradient_3BT[which, b, t].item(), rel=1e-6, abs=1e-6 * scale)


@every_algorithm
def test_only_the_outputs_carry_gradient(algorithm: Algorithm):
    """Rewards, advantages, old and reference log-probabilities are constants, even where someone left gradient on."""
    experience = make_experience()
    outputs = make_outputs(experience)
    constants = [experience.old_logprobs_BT, experience.ref_logprobs_BT, experience.rewards_PG]
    for constant in constants:
        assert constant is not None
        constant.requires_grad_()
    batch = make_batch(algorithm, experience)
    loss, _ = algorithm.loss(outputs, batch, count_totals(batch))
    assert torch.autograd.grad(loss, constants, allow_unused=True) == (None, None, None)


@every_algorithm
def test_no_argument_is_changed(algorithm: Algorithm):
    experience = make_experience()
    before = {f.name: getattr(experience, f.name) for f in fields(experience)}
    copies = {name: value.clone() for name, value in before.items() if isinstance(value, Tensor)}
    outputs, batch = make_outputs(experience), make_batch(algorithm, experience)
    algorithm.loss(outputs, batch, count_totals(batch))
    for name, copy in copies.items():
        assert torch.equal(before[name].nan_to_num(), copy.nan_to_num()), name
