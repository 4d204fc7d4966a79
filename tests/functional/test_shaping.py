"""Length penalties and rewards: worked numbers, their bounds, and which answers are compared."""

import pytest
import torch

from posttrain.functional.shaping import budget_penalty, kimi_length_reward, soft_overlong, without_eos_penalty


def test_worked_soft_overlong_penalty():
    lengths = torch.tensor([1, 80, 81, 85, 90, 95, 100, 101, 150])
    expected = [0, 0, -0.05, -0.25, -0.5, -0.75, -1, -1, -1]
    assert soft_overlong(lengths, max_length=100, buffer=20).tolist() == pytest.approx(expected)


def test_worked_length_reward_of_kimi():
    lengths_PG = torch.tensor([[100, 200, 400, 300]], dtype=torch.float64)
    correct_PG = torch.tensor([[True, True, True, False]])
    reward_PG = kimi_length_reward(lengths_PG, correct_PG, torch.ones_like(correct_PG))
    assert reward_PG.flatten().tolist() == pytest.approx([0.5, 0.1666666667, -0.5, -0.1666666667], rel=1e-8)


def test_a_short_wrong_answer_earns_nothing():
    correct_PG = torch.tensor([[False, True]])
    assert kimi_length_reward(torch.tensor([[10, 20]]), correct_PG, torch.ones(1, 2).bool()).tolist() == [[0, -0.5]]


def test_answers_of_equal_length_are_not_told_apart_and_lengths_of_other_prompts_do_not_matter():
    lengths_PG = torch.tensor([[7, 7, 7], [1, 2, 3]])
    correct_PG = torch.ones(2, 3).bool()
    assert kimi_length_reward(lengths_PG, correct_PG, correct_PG).tolist() == [[0, 0, 0], [0.5, 0, -0.5]]


def test_an_unscored_answer_is_neither_shortest_nor_longest():
    lengths_PG = torch.tensor([[1, 10, 20, 99]])
    scored_PG = torch.tensor([[False, True, True, False]])
    assert kimi_length_reward(lengths_PG, torch.ones(1, 4).bool(), scored_PG).tolist() == [[0, 0.5, -0.5, 0]]
    assert kimi_length_reward(lengths_PG, torch.ones(1, 4).bool(), torch.zeros(1, 4).bool()).tolist() == [[0] * 4]


def test_only_what_exceeds_the_budget_is_fined():
    assert budget_penalty(torch.tensor([[1, 8, 9, 90]]), budget=8, penalty=0.25).tolist() == [[0, 0, -0.25, -0.25]]


def test_penalties_have_the_precision_of_what_they_are_given():
    lengths, truncated = torch.tensor([7.0, 9.0]).double(), torch.tensor([0.0, 1.0]).double()
    assert budget_penalty(lengths, budget=8, penalty=0.7).tolist() == [0.0, -0.7]
    assert without_eos_penalty(truncated, penalty=0.7).tolist() == [0.0, -0.7]
