"""Rewards: built-in verifiers, functions of the user's, and the machinery that runs them without being hurt by them.

    with build_rewards([Reward(name="math"), Reward(function="my_rewards.py:brevity", weight=0.1)]) as rewards:
        scores = rewards.score(prompts, groups)

The verifiers are plain functions: `numeric("#### 18", "18")` is 1.0.
"""

from posttrain.rewards.components import Reward
from posttrain.rewards.mathematics.choices import multiple_choice
from posttrain.rewards.mathematics.countdown import countdown
from posttrain.rewards.mathematics.presets import aime, gsm8k, math500, svamp
from posttrain.rewards.reward_set import RewardSet, build_rewards, check_gold
from posttrain.rewards.scores import Failure, Scores, enforce_limit
from posttrain.rewards.verdict import Verdict
from posttrain.rewards.verifiers import exact_match, math, numeric, regex

__all__ = [
    "Failure",
    "Reward",
    "RewardSet",
    "Scores",
    "Verdict",
    "aime",
    "build_rewards",
    "check_gold",
    "countdown",
    "enforce_limit",
    "exact_match",
    "gsm8k",
    "math",
    "math500",
    "multiple_choice",
    "numeric",
    "regex",
    "svamp",
]
