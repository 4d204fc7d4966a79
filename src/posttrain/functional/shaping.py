"""Length penalties and bonuses, added to a reward before any statistic is computed over it (RULE 50).

P prompts, G completions per prompt. Pass lengths and `truncated` in the dtype of the rewards, which is that of the
result; for integers and booleans the result is float32. A length counts the trained tokens of a completion, including
the closing EOS but not tool output. `scored_PG` is False for completions without a reward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from posttrain.functional.masks import masked

if TYPE_CHECKING:
    from torch import Tensor


def soft_overlong(lengths: Tensor, max_length: int, buffer: int) -> Tensor:
    """DAPO's soft penalty (arXiv:2503.14476, eq. 13): 0 up to `max_length - buffer`, falling to -1 at `max_length`.

    Longer completions also have -1.

    >>> soft_overlong(torch.tensor([80, 90, 100, 150]), max_length=100, buffer=20).tolist()
    [0.0, -0.5, -1.0, -1.0]
    """
    return ((max_length - buffer - lengths) / buffer).clamp(-1, 0)


def kimi_length_reward(lengths_PG: Tensor, correct_PG: Tensor, scored_PG: Tensor) -> Tensor:
    """`[P, G]` length reward of Kimi k1.5 (arXiv:2501.12599, section 2.3.3), relative to the other answers.

        lambda = 1/2 - (length - shortest) / (longest - shortest)       over the scored completions of the prompt
        lambda for a correct answer, min(0, lambda) for a wrong one; 0 where all have the same length

    >>> lengths_PG, correct_PG = torch.tensor([[100, 200, 300]]), torch.tensor([[True, True, False]])
    >>> kimi_length_reward(lengths_PG, correct_PG, torch.ones_like(correct_PG)).tolist()
    [[0.5, 0.0, -0.5]]
    """
    longest_P1 = lengths_PG.masked_fill(~scored_PG, 0).amax(dim=-1, keepdim=True)
    shortest_P1 = torch.minimum(lengths_PG.where(scored_PG, longest_P1).amin(dim=-1, keepdim=True), longest_P1)
    span_P1 = longest_P1 - shortest_P1
    lambda_PG = 0.5 - (lengths_PG - shortest_P1) / span_P1.clamp(min=1)
    reward_PG = torch.where(correct_PG, lambda_PG, lambda_PG.clamp(max=0))
    return masked(reward_PG, scored_PG & (span_P1 > 0))


def budget_penalty(lengths: Tensor, budget: int, penalty: float) -> Tensor:
    """Kimi K2's token budget (arXiv:2507.20534): -penalty for a completion with more tokens than the budget, else 0.

    >>> budget_penalty(torch.tensor([7, 8, 9]), budget=8, penalty=0.5).tolist()
    [0.0, 0.0, -0.5]
    """
    return 0 - penalty * (lengths > budget).to(lengths.dtype)


def clip_scores(scores: Tensor, limit: float | None) -> Tensor:
    """Scores clipped to ±limit, for a reward model whose scores have no bound. None leaves them unchanged."""
    return scores if limit is None else scores.clamp(-limit, limit)


def without_eos_penalty(truncated: Tensor, penalty: float) -> Tensor:
    """-penalty for a completion that was cut before its EOS, else 0.

    >>> without_eos_penalty(torch.tensor([False, True]), penalty=0.5).tolist()
    [0.0, -0.5]
    """
    return 0 - penalty * truncated
