"""Rewards: built-in verifiers, user functions, and the machinery that runs them in isolation.

    with build_rewards([Reward(name="math"), Reward(function="my_rewards.py:brevity", weight=0.1)]) as rewards:
        scores = rewards.score(prompts, groups)

The verifiers are plain functions: `numeric("#### 18", "18")` is 1.0. Some have to be imported from their own modules:
`from posttrain.verify.programs import code`, `from posttrain.rewards.language import language` and
`from posttrain.rewards.repetition import repetition`. The reward `format` is the
function `format_tags`. `environment` and `agent` are the rewards that an environment or an agent gives its trajectory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from posttrain.importing import names_on_first_use

if TYPE_CHECKING:
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
    from posttrain.rewards.reward_set import RewardSet, build_rewards, check_gold
    from posttrain.rewards.scores import Failure, Scores, enforce_limit
    from posttrain.rewards.verifiers import exact_match, math, numeric, regex
    from posttrain.verify.mathematics.choices import multiple_choice
    from posttrain.verify.mathematics.countdown import countdown
    from posttrain.verify.mathematics.presets import aime, gsm8k, math500, math_lenient, svamp
    from posttrain.verify.verdict import Verdict

__all__ = [
    "Failure", "Reward", "RewardSet", "Scores", "Verdict", "aime", "arora_zanette", "build_rewards", "check_gold",
    "cosine", "countdown", "enforce_limit", "exact_match", "finished", "format_tags", "fuzzy_match", "gsm8k",
    "json_schema", "kimi_length", "l1_exact", "l1_max", "math", "math500", "math_lenient", "multiple_choice",
    "numeric", "regex", "soft_overlong", "svamp",
]  # fmt: skip

_PLACES = {
    **dict.fromkeys(("format_tags", "json_schema"), "rewards.format"),
    **dict.fromkeys(("arora_zanette", "cosine", "finished", "kimi_length"), "rewards.length"),
    **dict.fromkeys(("l1_exact", "l1_max", "soft_overlong"), "rewards.length"),
    **dict.fromkeys(
        ("aime", "gsm8k", "math", "math500", "math_lenient", "numeric", "svamp"), "verify.mathematics.presets"
    ),
    **dict.fromkeys(("RewardSet", "build_rewards", "check_gold"), "rewards.reward_set"),
    **dict.fromkeys(("Failure", "Scores", "enforce_limit"), "rewards.scores"),
    **dict.fromkeys(("exact_match", "regex"), "rewards.verifiers"),
    "Reward": "rewards.components",
    "Verdict": "verify.verdict",
    "countdown": "verify.mathematics.countdown",
    "fuzzy_match": "rewards.fuzzy",
    "multiple_choice": "verify.mathematics.choices",
}
"""The module of each name. It is imported on first use, because a worker process needs none of them to start."""


__getattr__, __dir__ = names_on_first_use(__name__, {name: f"posttrain.{place}" for name, place in _PLACES.items()})
