"""Baselines and returns: worked numbers of fixture R, groups without signal, missing rewards, and brute force."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import catalogue

from posttrain.functional.baselines import (
    batch_mean,
    batch_std,
    center_by_group,
    group_mean,
    group_std,
    has_signal,
    leave_one_out_mean,
    length_weighted_mean,
    nonzero_share,
    pass_at_k_advantages,
    place_on_last_token,
    return_to_go,
    sum_of_normalised,
    whiten,
)

NAN = float("nan")


def all_scored(rewards_PG: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(rewards_PG, dtype=torch.bool)


def assert_printed(actual: torch.Tensor, expected: list) -> None:
    """Check equality with numbers that the reference prints with 10 digits."""
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-8, atol=1e-12)


def test_group_statistics(rewards_PG):
    scored_PG = all_scored(rewards_PG)
    assert_printed(group_mean(rewards_PG, scored_PG), [[0.5], [0.5], [1.0]])
    assert_printed(group_std(rewards_PG, scored_PG), [[0.5773502692], [0.2943920289], [0.0]])
    assert_printed(
        center_by_group(rewards_PG, scored_PG),
        [[0.5, -0.5, -0.5, 0.5], [-0.3, 0.4, 0, -0.1], [0, 0, 0, 0]],
    )
    assert batch_mean(rewards_PG, scored_PG).item() == pytest.approx(8 / 12)


@pytest.mark.parametrize(
    ("epsilon", "first", "second"),
    [
        (1e-4, 0.8658754298, [-1.018703294, 1.358271059, 0, -0.3395677648]),
        (1e-6, 0.8660239038, [-1.019045869, 1.358727826, 0, -0.3396819564]),
        (1e-9, 0.8660254023, [-1.019049327, 1.358732436, 0, -0.3396831091]),
    ],
    ids=["trl", "here and verl", "openrlhf"],
)
def test_normalised_groups_with_each_epsilon(rewards_PG, epsilon: float, first: float, second: list[float]):
    scored_PG = all_scored(rewards_PG)
    normalised_PG = center_by_group(rewards_PG, scored_PG) / (group_std(rewards_PG, scored_PG) + epsilon)
    assert_printed(normalised_PG, [[first, -first, -first, first], second, [0, 0, 0, 0]])


def test_leave_one_out_baselines(rewards_PG):
    third, two_thirds = 0.3333333333, 0.6666666667
    assert_printed(
        leave_one_out_mean(rewards_PG, all_scored(rewards_PG)),
        [[third, two_thirds, two_thirds, third], [0.6, 0.3666666667, 0.5, 0.5333333333], [1, 1, 1, 1]],
    )


@given(
    reward=st.floats(-100, 100, width=32),
    group_size=st.integers(2, 64),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_equal_rewards_have_no_signal_whatever_the_rounding(reward: float, group_size: int, dtype: torch.dtype):
    """The float32 mean of seven rewards of 0.1 is not 0.1."""
    rewards_PG = torch.full((1, group_size), reward, dtype=dtype)
    assert not has_signal(rewards_PG, all_scored(rewards_PG)).any()
    assert (center_by_group(rewards_PG, all_scored(rewards_PG)) == 0).all()


def test_seven_float32_rewards_of_a_tenth_do_not_cancel_by_themselves():
    """This is why the rule is needed: without it these rewards leave a difference that the division would blow up."""
    rewards_PG = torch.full((1, 7), 0.1)
    assert (rewards_PG - group_mean(rewards_PG, all_scored(rewards_PG))).abs().max() > 0
    assert (center_by_group(rewards_PG, all_scored(rewards_PG)) == 0).all()


@pytest.mark.parametrize(("difference", "signal"), [(1e-6, True), (1e-9, False)])
def test_rewards_that_differ_by_more_than_rounding_have_signal(difference: float, signal: bool):
    rewards_PG = torch.tensor([[0.5, 0.5 + difference]], dtype=torch.float64)
    assert has_signal(rewards_PG, all_scored(rewards_PG)).item() is signal


def test_the_tolerance_grows_with_the_mean_of_the_rewards():
    rewards_PG = torch.tensor([[1e6, 1e6 + 1e-3]], dtype=torch.float64)
    assert not has_signal(rewards_PG, all_scored(rewards_PG)).item()


def test_unscored_siblings_take_part_in_nothing():
    """The three scored ones of five have the statistics of a group of three. The other places hold nan."""
    five_PG = torch.tensor([[1.0, NAN, 0.0, 0.5, NAN]], dtype=torch.float64)
    scored_PG = ~five_PG.isnan()
    three_PG = five_PG[scored_PG][None]
    for statistic in (group_mean, group_std):
        assert_printed(statistic(five_PG, scored_PG), statistic(three_PG, all_scored(three_PG)).tolist())
    assert batch_mean(five_PG, scored_PG).item() == pytest.approx(0.5)
    assert_printed(center_by_group(five_PG, scored_PG), [[0.5, 0, -0.5, 0, 0]])
    assert_printed(leave_one_out_mean(five_PG, scored_PG)[scored_PG], [0.25, 0.75, 0.5])


def test_a_group_with_one_scored_completion_or_none_has_no_signal():
    rewards_PG = torch.tensor([[0.7, NAN], [NAN, NAN]], dtype=torch.float64)
    scored_PG = ~rewards_PG.isnan()
    assert has_signal(rewards_PG, scored_PG).tolist() == [[False], [False]]
    assert center_by_group(rewards_PG, scored_PG).tolist() == [[0, 0], [0, 0]]
    assert group_std(rewards_PG, scored_PG).tolist() == [[0], [0]]
    assert leave_one_out_mean(rewards_PG, scored_PG)[0, 0].item() == 0.7


def test_the_mean_of_a_batch_without_any_reward_is_zero():
    rewards_PG = torch.full((2, 2), NAN)
    assert batch_mean(rewards_PG, ~rewards_PG.isnan()).item() == 0


@given(
    gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    rows=st.lists(st.lists(st.tuples(st.floats(-2, 2), st.booleans()), min_size=4, max_size=4), min_size=1, max_size=3),
)
def test_return_to_go_sums_the_discounted_rewards_of_the_trained_tokens(gamma: float, rows: list):
    """Masked tokens have no reward and do not discount."""
    rewards_BT = torch.tensor([[r if m else NAN for r, m in row] for row in rows], dtype=torch.float64)
    mask_BT = ~rewards_BT.isnan()
    expected_BT = torch.zeros_like(rewards_BT)
    for b in range(len(rows)):
        trained = mask_BT[b].nonzero().flatten().tolist()
        for i, t in enumerate(trained):
            expected_BT[b, t] = sum(gamma**j * rewards_BT[b, s].item() for j, s in enumerate(trained[i:]))
    torch.testing.assert_close(return_to_go(rewards_BT, mask_BT, gamma), expected_BT, atol=1e-12, rtol=0)


def test_return_to_go_changes_no_argument_and_takes_rows_of_no_tokens():
    rewards_BT = torch.tensor([[1.0, 2.0]])
    return_to_go(rewards_BT, torch.tensor([[True, False]]), gamma=0.5)
    assert rewards_BT.tolist() == [[1.0, 2.0]]
    assert return_to_go(torch.zeros(2, 0), torch.zeros(2, 0, dtype=torch.bool), gamma=0.5).shape == (2, 0)


def test_the_reward_stands_on_the_last_trained_token():
    mask_BT = torch.tensor([[1, 1, 0], [0, 1, 1], [0, 0, 0]]).bool()
    placed_BT = place_on_last_token(torch.tensor([0.3, -2.0, 5.0]), mask_BT)
    torch.testing.assert_close(placed_BT, torch.tensor([[0, 0.3, 0], [0, 0, -2.0], [0, 0, 0]]))


# Statistics over the batch


def test_the_length_weighted_mean_of_opo(rewards_PG, lengths_PG):
    means_P1 = length_weighted_mean(rewards_PG, all_scored(rewards_PG), lengths_PG)
    assert_printed(means_P1, [[0.4], [0.475], [1.0]])
    assert_printed(rewards_PG - means_P1, [[0.6, -0.4, -0.4, 0.6], [-0.275, 0.425, 0.025, -0.075], [0, 0, 0, 0]])


def test_with_equal_lengths_it_is_the_plain_mean_and_also_when_nothing_was_written(rewards_PG):
    scored_PG = all_scored(rewards_PG)
    for length in (7, 0):
        lengths_PG = torch.full(rewards_PG.shape, length)
        assert_printed(length_weighted_mean(rewards_PG, scored_PG, lengths_PG), [[0.5], [0.5], [1.0]])


def test_gpg_divides_by_the_share_of_rewards_that_are_not_zero(rewards_PG):
    scored_PG = all_scored(rewards_PG)
    assert nonzero_share(rewards_PG, scored_PG).item() == pytest.approx(10 / 12)
    assert_printed(
        center_by_group(rewards_PG, scored_PG) / nonzero_share(rewards_PG, scored_PG),
        [[0.6, -0.6, -0.6, 0.6], [-0.36, 0.48, 0, -0.12], [0, 0, 0, 0]],
    )
    assert nonzero_share(torch.zeros(2, 2), all_scored(torch.zeros(2, 2))).item() == 1


def test_the_standard_deviation_of_the_batch(rewards_PG):
    scored_PG = all_scored(rewards_PG)
    assert batch_std(rewards_PG, scored_PG).item() == pytest.approx(0.4185110693, rel=1e-8)
    assert_printed(
        center_by_group(rewards_PG, scored_PG) / (batch_std(rewards_PG, scored_PG) + 1e-4),
        [
            [1.194426131, -1.194426131, -1.194426131, 1.194426131],
            [-0.7166556787, 0.9555409049, 0, -0.2388852262],
            [0, 0, 0, 0],
        ],
    )


def test_statistics_of_the_batch_leave_out_what_has_no_reward():
    rewards_PG = torch.tensor([[1.0, NAN, 0.0, 0.5]], dtype=torch.float64)
    scored_PG, lengths_PG = ~rewards_PG.isnan(), torch.tensor([[1, 9, 2, 4]])
    assert batch_std(rewards_PG, scored_PG).item() == pytest.approx(0.5)
    assert nonzero_share(rewards_PG, scored_PG).item() == pytest.approx(2 / 3)
    assert length_weighted_mean(rewards_PG, scored_PG, lengths_PG).item() == pytest.approx(3 / 7)


# Several rewards


SEVERAL_KPG = torch.tensor(
    [[[1, 0, 0, 1], [0, 0, 1, 0]], [[0.1, 0.9, 0.5, 0.3], [0.2, 0.2, 0.4, 0.8]]], dtype=torch.float64
)


def test_rewards_that_are_normalised_one_by_one():
    advantages_PG = sum_of_normalised(SEVERAL_KPG, torch.ones(2), torch.ones(2, 4).bool(), epsilon=1e-4)
    assert_printed(
        advantages_PG,
        [
            [-0.1593561076, 0.453584685, -0.7233296245, 0.4291010472],
            [-1.213123913, -1.213123913, 1.507612694, 0.9186351319],
        ],
    )


def test_rewards_that_are_summed_first_are_something_else():
    total_PG, scored_PG = SEVERAL_KPG.sum(dim=0), torch.ones(2, 4).bool()
    assert_printed(
        center_by_group(total_PG, scored_PG) / (group_std(total_PG, scored_PG) + 1e-4),
        [
            [0.439026499, -0.1463421663, -1.317079497, 1.024395164],
            [-0.7832131119, -0.7832131119, 1.305355186, 0.2610710373],
        ],
    )


def test_a_reward_that_does_not_apply_is_in_no_statistic_of_its_own():
    """Completion 1 has no second reward, so the other three are normalised among themselves."""
    rewards_KPG = SEVERAL_KPG[:, :1].clone()
    rewards_KPG[1, 0, 1] = NAN
    others_PG = torch.tensor([[0.1, 0.5, 0.3]], dtype=torch.float64)
    z_PG = center_by_group(others_PG, all_scored(others_PG)) / (group_std(others_PG, all_scored(others_PG)) + 1e-6)
    a = 0.5 / (3**-0.5 + 1e-6)
    total_PG = torch.tensor([[a, -a, -a, a]], dtype=torch.float64)
    total_PG[:, [0, 2, 3]] += z_PG
    assert_printed(
        sum_of_normalised(rewards_KPG, torch.ones(2), torch.ones(1, 4).bool()),
        (total_PG / (total_PG.std() + 1e-6)).tolist(),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_group_without_signal_in_any_reward_stays_exactly_zero(dtype: torch.dtype):
    rewards_KPG = torch.tensor([[[1.0, 0.0, 0.3], [0.1, 0.1, 0.1]], [[0.2, 0.2, 0.2], [0.7, 0.7, 0.7]]], dtype=dtype)
    advantages_PG = sum_of_normalised(rewards_KPG, torch.tensor([1.0, 0.3]), torch.ones(2, 3).bool())
    assert (advantages_PG[1] == 0).all()
    assert (advantages_PG[0] != 0).all()


# pass@k


def correct(n: int, c: int) -> torch.Tensor:
    return torch.arange(n)[None] < c


def test_worked_pass_at_k_advantages():
    right_PG = correct(8, 3)
    advantages_PG = pass_at_k_advantages(right_PG, all_scored(right_PG), 4, epsilon=0.0)
    assert_printed(advantages_PG, [[0.2773500981] * 3 + [-0.1664100589] * 5])


@pytest.mark.parametrize("n", [2, 3, 5, 7])
def test_pass_at_k_advantages_are_averages_over_subsets_and_sum_to_zero(n: int):
    """Every subset of k is a group whose reward is that of its best answer, normalised over all groups (ddof 0)."""
    for k, c in itertools.product(range(1, n + 1), range(n + 1)):
        right_PG = correct(n, c)
        subsets = list(itertools.combinations(range(n), k))
        best = torch.tensor([float(any(i < c for i in subset)) for subset in subsets], dtype=torch.float64)
        normalised = (best - best.mean()) / (best.std(correction=0) + 1e-6)
        expected = [
            sum(z.item() for z, subset in zip(normalised, subsets, strict=True) if i in subset)
            / sum(i in subset for subset in subsets)
            for i in range(n)
        ]
        advantages_PG = pass_at_k_advantages(right_PG, all_scored(right_PG), k)
        torch.testing.assert_close(advantages_PG[0], torch.tensor(expected, dtype=torch.float64), rtol=1e-8, atol=1e-9)
        assert advantages_PG.sum().item() == pytest.approx(0, abs=1e-12)
        if c == 0 or n - c < k:
            assert (advantages_PG == 0).all()


def test_unscored_answers_are_not_drawn():
    right_PG = torch.tensor([[True, False, True, False, False]])
    scored_PG = torch.tensor([[True, True, False, True, True]])
    four_PG = torch.tensor([[True, False, False, False]])
    expected_PG = pass_at_k_advantages(four_PG, all_scored(four_PG), 2)
    advantages_PG = pass_at_k_advantages(right_PG, scored_PG, 2)
    assert advantages_PG[0, 2].item() == 0
    assert torch.equal(advantages_PG[scored_PG], expected_PG[0])
    assert (pass_at_k_advantages(right_PG, scored_PG, 5) == 0).all()


# Whitening

BY_SEQUENCE = [
    ({}, [0.9456016708, -1.514500237, -1.022479855, 0.69959148, -0.2844492831, -0.5304594739]),
    ({"population": True}, [0.9607322874, -1.538733826, -1.038840603, 0.710785676, -0.2890007694, -0.5389473807]),
    ({"over": "sequences"}, [0.7964743344, -1.592948669, -1.115064068, 0.5575320341, -0.3982371672, -0.6371794675]),
]


def per_token(values_PG: torch.Tensor, lengths_PG: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mask_BT = torch.arange(6)[None] < lengths_PG.reshape(-1, 1)
    return torch.where(mask_BT, values_PG.reshape(-1, 1), NAN), mask_BT


@pytest.mark.parametrize(("how", "expected"), BY_SEQUENCE, ids=str)
def test_worked_whitening(rewards_PG, lengths_PG, how: dict, expected: list[float]):
    x_BT, mask_BT = per_token(rewards_PG, lengths_PG)
    right, wrong, *second = expected
    white_BT = whiten(x_BT, mask_BT, **how)
    assert_printed(white_BT[:, 0].reshape(3, 4), [[right, wrong, wrong, right], second, [right] * 4])
    assert torch.equal(white_BT, torch.where(mask_BT, white_BT[:, :1], 0.0))


@pytest.mark.parametrize("over", ["tokens", "sequences"])
def test_the_mean_is_subtracted_restored_or_kept(rewards_PG, lengths_PG, over):
    x_BT, mask_BT = per_token(rewards_PG, lengths_PG)
    subtracted, restored, kept = (
        whiten(x_BT, mask_BT, over=over, mean=mean)[mask_BT] for mean in ("subtract", "restore", "keep")
    )
    mean = x_BT[mask_BT].mean() if over == "tokens" else rewards_PG.mean()
    torch.testing.assert_close(restored, subtracted + mean)
    torch.testing.assert_close(kept / subtracted, x_BT[mask_BT] / (x_BT[mask_BT] - mean))


@catalogue("population", [False, True])
@catalogue("over", ["tokens", "sequences"])
@catalogue("mask", [[[False, False]], [[True, False]], [[True, True]]], ids=["none", "one", "two equal"])
def test_what_does_not_vary_has_no_scale(mask: list, over, population: bool):
    """The result is 0 if the mean is subtracted, and unchanged if it is kept: neither nan nor a division by 1e-4."""
    x_BT, mask_BT = torch.full((1, 2), 0.7), torch.tensor(mask)
    assert (whiten(x_BT, mask_BT, over=over, population=population) == 0).all()
    for mean in ("restore", "keep"):
        assert torch.equal(whiten(x_BT, mask_BT, over=over, mean=mean, population=population), 0.7 * mask_BT)
