"""Baselines and returns: worked numbers of fixture R, groups without signal, missing rewards, and brute force."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.functional.baselines import (
    batch_mean,
    center_by_group,
    group_mean,
    group_std,
    has_signal,
    leave_one_out_mean,
    place_on_last_token,
    return_to_go,
)

NAN = float("nan")


def all_scored(rewards_PG: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(rewards_PG, dtype=torch.bool)


def assert_printed(actual: torch.Tensor, expected: list) -> None:
    """Equal to what the reference prints with 10 digits."""
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
    """Why the rule is needed: without it these rewards would leave a difference, for the division to blow up."""
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
    """The scored three of five have the statistics of a group of three; nan stands in the other places."""
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
    """Tokens that are masked out neither count nor discount."""
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
