"""Invariances of every algorithm: padding, splits, order, constants, and values hidden by a mask change nothing.

In addition, gradients agree with finite differences, and the metrics of the parts merge into those of the step.
"""

import math
from dataclasses import replace

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
from tests.catalogue import THOROUGH, catalogue, examples
from torch import Tensor

from posttrain.algorithms import RLOO, Algorithm, DrGRPO, PolicyGradient
from posttrain.errors import ConfigError
from posttrain.testing import invariances
from posttrain.testing.steps import G, P, gradients, make_batch, make_experience, make_outputs
from posttrain.types import Experience, Outputs, Totals, count_totals

NAN = float("nan")

REPEATED = {
    *("rloo clip kl", "dr_grpo kl", "gspo_token wide kl", "gmpo narrow", "sapo sharp", "remax clip kl", "luspo wide"),
    *("gdpo kl dual clip", "dapo top entropy"),
}
"""Variants whose settings are those of other variants, or other numbers for a setting that is on anyway. Both the
algorithm and the settings are tried with others. Like more examples, they are left to `make test-slow`."""
TRIED = ALGORITHMS if THOROUGH else {name: one for name, one in ALGORITHMS.items() if name not in REPEATED}
every_algorithm = catalogue("algorithm", TRIED.values(), ids=TRIED)
group_relative = catalogue("algorithm", [ALGORITHMS[n] for n in GROUP_RELATIVE], ids=GROUP_RELATIVE)
anything = st.integers(0, 10_000)
few_examples = examples(2, 8)  # per variant: the 76 variants together draw a lot of data


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


# Splits and order


def dealt(parts: int) -> st.SearchStrategy[list[int]]:
    """Draw the part of each row, out of this many parts."""
    return st.lists(st.integers(0, parts - 1), min_size=P * G, max_size=P * G)


@few_examples
@given(seed=anything, owner=st.integers(1, 12 if THOROUGH else 4).flatmap(dealt))
@every_algorithm
def test_any_split_sums_to_the_same_loss_gradient_and_metrics(algorithm: Algorithm, seed: int, owner: list[int]):
    """Rows are dealt out at random: parts are uneven or empty, and groups are torn apart."""
    invariances.any_split_sums_to_the_whole(algorithm, make_experience(seed), owner)
    invariances.ranks_count_the_same_denominators(algorithm, make_experience(seed), owner)


@few_examples
@given(seed=anything, order=st.permutations(range(P * G)))
@every_algorithm
def test_the_order_of_rows_does_not_matter(algorithm: Algorithm, seed: int, order: list[int]):
    invariances.the_order_of_rows_does_not_matter(algorithm, make_experience(seed), order)


@few_examples
@given(seed=anything, prompts=st.permutations(range(P)), members=st.permutations(range(G)))
@every_algorithm
def test_advantages_follow_their_completions(algorithm: Algorithm, seed: int, prompts: list[int], members: list[int]):
    if isinstance(algorithm, PolicyGradient):
        invariances.advantages_follow_their_completions(algorithm, make_experience(seed), prompts, members)


# Padding and masks


@few_examples
@given(seed=anything, columns=st.integers(1, 3))
@every_algorithm
def test_padding_columns_do_not_matter(algorithm: Algorithm, seed: int, columns: int):
    invariances.padding_columns_do_not_matter(algorithm, make_experience(seed), columns)


@catalogue("name", ALGORITHMS)
def test_rows_with_empty_masks_do_not_matter(name: str):
    assert not make_experience().completion_mask_BT.any(dim=-1).all()
    counted = name in COUNTING_MASKED
    invariances.rows_without_trained_tokens_do_not_matter(ALGORITHMS[name], make_experience(), counted=counted)


@every_algorithm
def test_what_stands_outside_the_mask_is_never_read(algorithm: Algorithm):
    values = (NAN, torch.inf, -torch.inf, 0.0, 1e30) if THOROUGH else (NAN, 1e30)
    invariances.what_stands_outside_the_mask_is_never_read(algorithm, make_experience(), *values)


@every_algorithm
def test_an_all_masked_batch_is_zero_and_not_nan(algorithm: Algorithm):
    experience = make_experience()
    invariances.an_all_masked_step_is_zero(algorithm, experience)
    nothing = replace(experience, completion_mask_BT=torch.zeros_like(experience.completion_mask_BT))
    assert count_totals(make_batch(algorithm, nothing)) == Totals(tokens=0, sequences=0, rows=P * G)


@every_algorithm
def test_nothing_scored_is_zero_and_not_nan(algorithm: Algorithm):
    invariances.nothing_scored_is_zero(algorithm, make_experience())


@every_algorithm
def test_what_nobody_scored_trains_only_algorithms_that_read_no_rewards(algorithm: Algorithm):
    experience = make_experience()
    nothing = torch.full_like(experience.rewards_PG, torch.nan)
    unscored = replace(experience, rewards_PG=nothing, scored_PG=torch.ones_like(experience.scored_PG))
    if algorithm.data_kind != "prompts":
        return
    if not algorithm.learns_from_rewards:
        everything = make_batch(algorithm, replace(unscored, rewards_PG=torch.zeros_like(nothing)))
        batch = make_batch(algorithm, unscored)
        assert torch.equal(batch.completion_mask_BT, experience.completion_mask_BT)
        assert batch.advantages_BT is not None
        assert everything.advantages_BT is not None
        assert torch.equal(batch.advantages_BT, everything.advantages_BT)
        return
    for compute in (algorithm.to_batch, getattr(algorithm, "advantages", algorithm.to_batch)):
        with pytest.raises(ConfigError, match=r"(?s)experience without rewards, .*your own numbers \[P, G\]"):
            compute(unscored, algorithm.initial_state())


@every_algorithm
@catalogue("difference", [100.0, -100.0])
@catalogue("dtype", [torch.float32, torch.float64] if THOROUGH else [torch.float32])
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
    assert all(gradient.isfinite().all() for gradient in gradients(outputs, loss).values())
    if batch.completion_mask_BT.any():  # if all of it is rejected, a mean over nothing is nan
        assert all(math.isfinite(float(metric)) for metric in metrics.values())


def at_start(experience: Experience) -> tuple[Outputs, Experience]:
    """Return a policy that is at the start of the update and has sampled the data itself."""
    outputs = make_outputs(replace(experience, sampling_logprobs_BT=experience.old_logprobs_BT))
    return outputs, replace(experience, sampling_logprobs_BT=experience.old_logprobs_BT)


@few_examples
@given(seed=anything)
@every_algorithm
def test_on_policy_the_old_log_probabilities_may_be_left_out(algorithm: Algorithm, seed: int):
    """RULE 6: loss and gradient do not depend on whether the old log-probabilities were recomputed or left out."""
    invariances.on_policy_the_old_log_probabilities_may_be_left_out(algorithm, make_experience(seed))


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


@few_examples
@given(seed=anything, shift=st.floats(-100, 100), scale=st.floats(0.1, 10))
@group_relative
def test_shifted_rewards_are_the_same_and_scaled_rewards_scale(
    algorithm: PolicyGradient, seed: int, shift: float, scale: float
):
    experience = make_experience(seed)
    advantages_BT = algorithm.advantages(experience)
    shift_P1 = shift * torch.tensor([[1.0], [0.0], [-0.5]], dtype=torch.float64)
    shifted_BT = algorithm.advantages(replace(experience, rewards_PG=experience.rewards_PG + shift_P1))
    scaled_BT = algorithm.advantages(replace(experience, rewards_PG=experience.rewards_PG * scale))
    torch.testing.assert_close(shifted_BT, advantages_BT, rtol=1e-9, atol=1e-9)
    if algorithm.key in DIVIDED_BY_STD:  # invariant up to the 1e-6, because it divides by the standard deviation
        torch.testing.assert_close(scaled_BT, advantages_BT, rtol=1e-3, atol=0)
    else:
        torch.testing.assert_close(scaled_BT, scale * advantages_BT, rtol=1e-9, atol=1e-12)


@group_relative
@catalogue("group_size", [2, 3, 6, 7, 16, 33] if THOROUGH else [3, 7, 33])
@catalogue("reward", [0.1, 0.9, 1 / 3, 100.7, -1e6, 0.0])
def test_equal_float32_rewards_get_exactly_zero(algorithm: PolicyGradient, group_size: int, reward: float):
    """This holds although their float32 mean may differ from them."""
    experience = Experience.from_rewards(
        torch.full((2, group_size), reward), completion_mask_BT=torch.ones(2 * group_size, 1)
    )
    assert (algorithm.advantages(experience) == 0).all()


@few_examples
@given(seed=anything)
@group_relative
def test_the_advantages_of_a_group_sum_to_zero(algorithm: PolicyGradient, seed: int):
    rewards_PG = make_experience(seed).rewards_PG
    experience = Experience.from_rewards(rewards_PG, completion_mask_BT=torch.ones(P * G, 1))
    sums_P = algorithm.advantages(experience).reshape(P, G).sum(dim=-1)
    torch.testing.assert_close(sums_P, torch.zeros_like(sums_P), rtol=0, atol=1e-12)


@few_examples
@given(seed=anything)
def test_rloo_is_the_centred_reward_scaled_by_the_scored_of_the_group(seed: int):
    """The factor is G / (G - 1), where G counts the completions that have a reward."""
    experience = make_experience(seed)
    scored_P1 = experience.scored_PG.double().sum(dim=-1, keepdim=True)
    factor_B1 = (scored_P1 / (scored_P1 - 1)).expand(P, G).reshape(-1, 1)
    assert_same(RLOO().advantages(experience), factor_B1 * DrGRPO().advantages(experience))


# Gradients


PATHWISE = [name for name, a in TRIED.items() if "corrected" not in name and a.key not in STRAIGHT_THROUGH]
PATHWISE = [name for name in PATHWISE if name not in WEIGHED_BY_THE_POLICY]


@catalogue("algorithm", [ALGORITHMS[name] for name in PATHWISE], ids=PATHWISE)
def test_gradients_agree_with_finite_differences(algorithm: Algorithm):
    experience = make_experience()
    outputs, batch = make_outputs(experience), make_batch(algorithm, experience)
    totals = count_totals(batch)
    gradient_3BT = torch.stack([*gradients(outputs, algorithm.loss(outputs, batch, totals)[0]).values()])
    leaves = [outputs.logprobs_BT.detach(), outputs.entropy_BT.detach(), outputs.values_BT.detach()]  # type: ignore[union-attr]
    scale = gradient_3BT.abs().max().item()

    for which, b, t in (gradient_3BT.abs() > 1e-3 * scale).nonzero()[:: 5 if THOROUGH else 15].tolist():
        values = []
        for step in (1e-5, -1e-5):
            moved = [leaf.clone() for leaf in leaves]
            moved[which][b, t] += step
            values.append(algorithm.loss(Outputs(*moved), batch, totals)[0].item())
        difference = (values[0] - values[1]) / 2e-5
        assert difference == pytest.approx(gradient_3BT[which, b, t].item(), rel=1e-6, abs=1e-6 * scale)


@every_algorithm
def test_only_the_outputs_carry_gradient(algorithm: Algorithm):
    invariances.only_the_outputs_carry_gradient(algorithm, make_experience())


@every_algorithm
def test_no_argument_is_changed(algorithm: Algorithm):
    invariances.no_argument_is_changed(algorithm, make_experience())
