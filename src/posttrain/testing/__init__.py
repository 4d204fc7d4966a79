"""Checks for your own algorithms and rewards, to call in a test. posttrain's algorithms and rewards pass them, too.

from posttrain.testing import check_algorithm, check_reward

def test_my_algorithm():
    check_algorithm(MyAlgorithm)

def test_my_reward():
    check_reward("my_rewards.py:grade", "task:arithmetic")
"""

from __future__ import annotations

from posttrain.testing.algorithm import algorithm_checks, check_algorithm
from posttrain.testing.checks import ChecksFailed
from posttrain.testing.reward import check_reward

__all__ = ["ChecksFailed", "algorithm_checks", "check_algorithm", "check_reward"]
