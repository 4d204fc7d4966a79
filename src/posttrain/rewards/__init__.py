"""Rewards: built-in verifiers, functions of the user's, and the machinery that runs them without being hurt by them.

    with build_rewards([Reward(name="math"), Reward(function="my_rewards.py:brevity", weight=0.1)]) as rewards:
        scores = rewards.score(prompts, groups)

The verifiers are plain functions: `numeric("#### 18", "18")` is 1.0. Those whose modules have their names are in these:
`from posttrain.rewards.code import code`, and likewise `language` and `repetition`; `format` is `format_tags`.
"""

from posttrain.rewards.components import Reward
from posttrain.rewards.format import format_tags, json_schema
from posttrain.rewards.fuzzy import fuzzy_match
from posttrain.rewards.length import (
    arora_zanette,
    cosine,
    finished,
    kimi_length,
    l1_exact,
    l1_max,
    soft_overlong,
)
from posttrain.rewards.mathematics.choices import multiple_choice
from posttrain.rewards.mathematics.countdown import countdown
from posttrain.rewards.mathematics.presets import aime, gsm8k, math500, math_lenient, svamp
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
    "arora_zanette",
    "build_rewards",
    "check_gold",
    "cosine",
    "countdown",
    "enforce_limit",
    "exact_match",
    "finished",
    "format_tags",
    "fuzzy_match",
    "gsm8k",
    "json_schema",
    "kimi_length",
    "l1_exact",
    "l1_max",
    "math",
    "math500",
    "math_lenient",
    "multiple_choice",
    "numeric",
    "regex",
    "soft_overlong",
    "svamp",
]
