"""Functions that turn rewards into advantages: baselines, scales and returns (docs/rules.md).

P prompts, G completions per prompt, B = P * G rows, T tokens.

`scored_PG` is False for completions without a reward. Such an entry is left out of all statistics, and its own value is
meaningless (the caller masks it).
"""

from __future__ import annotations

from fractions import Fraction
from math import comb, sqrt
from typing import TYPE_CHECKING, Literal, get_args

import torch

from posttrain.functional.choices import require_choice
from posttrain.functional.masks import last_token, masked

if TYPE_CHECKING:
    from torch import Tensor

WhitenOver = Literal["tokens", "sequences"]
WhitenMean = Literal["subtract", "restore", "keep"]

EQUAL_REWARDS = 1e-8
"""Relative tolerance: rewards of a group that differ by at most this times max(1, |mean|) count as equal (RULE 11)."""
WHITEN_EPSILON = 1e-8
"""Constant that is added to the variance under the root when tokens are whitened (RULE 19)."""


def group_mean(rewards_PG: Tensor, scored_PG: Tensor) -> Tensor:
    """`[P, 1]`: mean over the scored completions of each prompt."""
    total_P1 = masked(rewards_PG, scored_PG).sum(dim=-1, keepdim=True)
    return total_P1 / scored_PG.sum(dim=-1, keepdim=True).clamp(min=1)


def leave_one_out_mean(rewards_PG: Tensor, scored_PG: Tensor) -> Tensor:
    """`[P, G]`: mean over the *other* scored completions of the prompt; the own reward if there is none."""
    total_P1 = masked(rewards_PG, scored_PG).sum(dim=-1, keepdim=True)
    others_PG = scored_PG.sum(dim=-1, keepdim=True) - scored_PG.int()
    return torch.where(others_PG > 0, (total_P1 - masked(rewards_PG, scored_PG)) / others_PG.clamp(min=1), rewards_PG)


def batch_mean(rewards_PG: Tensor, scored_PG: Tensor) -> Tensor:
    """Scalar: mean over all scored completions of the batch."""
    return masked(rewards_PG, scored_PG).sum() / scored_PG.sum().clamp(min=1)


def runner_up(rewards_PG: Tensor, scored_PG: Tensor) -> Tensor:
    """`[P, G]`: for a prompt's best completion the second-best reward, else the own reward (arXiv:2503.19595).

    So only the best completion differs from its baseline; with a tie at the top, or a single scored one, none does.
    """
    known_PG = rewards_PG.masked_fill(~scored_PG, -torch.inf)
    best_P2 = torch.nn.functional.pad(known_PG, (0, 1), value=-torch.inf).topk(2, dim=-1).values
    beaten = scored_PG & (rewards_PG == best_P2[:, :1]) & best_P2[:, 1:].isfinite()
    return torch.where(beaten, best_P2[:, 1:], rewards_PG)


def length_weighted_mean(rewards_PG: Tensor, scored_PG: Tensor, lengths_PG: Tensor) -> Tensor:
    """`[P, 1]`: sum of length * reward over sum of lengths, of the scored completions (OPO, arXiv:2505.23585).

    This baseline has the least variance if the squared norm of a completion's gradient grows with its length. If all
    scored completions of the prompt are empty, it is the plain mean.
    """
    weights_PG = masked(lengths_PG.to(rewards_PG.dtype), scored_PG)
    total_P1 = weights_PG.sum(dim=-1, keepdim=True)
    weighted_P1 = (weights_PG * masked(rewards_PG, scored_PG)).sum(dim=-1, keepdim=True)
    return torch.where(total_P1 > 0, weighted_P1 / total_P1.clamp(min=1), group_mean(rewards_PG, scored_PG))


def optimal_token_baseline(
    returns_BT: Tensor, logprobs_BT: Tensor, squared_probs_BT: Tensor, mask_BT: Tensor, group_size: int
) -> Tensor:
    """`[B, T]`: for each token the baseline with the least variance of the gradient (OTB, arXiv:2602.07078).

        w_t = |gradient of log p_t by the logits|^2 = 1 - 2 p_t + sum_v p_v^2
        W_t = w_1 + ... + w_t                               accumulated gradient norm of the completion up to t
        B_t = sum_i W_it G_it / sum_i W_it                  over the completions of the prompt that have a t-th token

    G_t is the return from token t on; t counts the trained tokens of a completion. B_t is 0 if no other completion of
    the prompt has a t-th token, because there is nothing to compare with.

    >>> returns_BT = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    >>> p_BT = torch.tensor([[0.5, 0.5], [0.5, 1.0]])  # p = 1/2 or 1: sum_v p_v^2 is the same number
    >>> baseline_BT = optimal_token_baseline(returns_BT, p_BT.log(), p_BT, torch.ones(2, 2), group_size=2)
    >>> [round(x, 4) for x in baseline_BT[0].tolist()]  # W = [0.5, 1] of the first, [0.5, 0.5] of the second
    [0.5, 0.6667]
    """
    mask_BT = mask_BT.bool()
    weight_BT = masked(1 - 2 * logprobs_BT.exp() + squared_probs_BT, mask_BT).cumsum(dim=-1)
    prompt_B1 = torch.arange(len(mask_BT), device=mask_BT.device)[:, None] // group_size
    cell_N = (prompt_B1 * mask_BT.shape[1] + mask_BT.cumsum(dim=-1) - 1)[mask_BT]  # (prompt, t) of each trained token
    returns_N, weight_N = returns_BT[mask_BT], weight_BT[mask_BT].to(returns_BT.dtype)
    zeros_C = returns_BT.new_zeros(mask_BT.numel())
    largest_C = zeros_C.scatter_reduce(0, cell_N, returns_N, "amax", include_self=False)
    # Below the largest return, so that the baseline of equal returns is exactly that return (RULE 11)
    below_C = zeros_C.index_add(0, cell_N, weight_N * (returns_N - largest_C[cell_N]))
    baseline_C = largest_C + below_C / zeros_C.index_add(0, cell_N, weight_N).clamp(min=WHITEN_EPSILON)
    several_C = zeros_C.index_add(0, cell_N, torch.ones_like(returns_N)) > 1
    return torch.zeros_like(returns_BT).masked_scatter(mask_BT, masked(baseline_C, several_C)[cell_N])


def nonzero_share(rewards_PG: Tensor, scored_PG: Tensor) -> Tensor:
    """Scalar: share of the scored completions whose reward is not 0; 1 if there is none, so that it can be a divisor.

    GPG (arXiv:2504.02546) divides the advantages of a batch by it: it treats rewards of 0 as answers without signal.
    """
    nonzero = (scored_PG & (rewards_PG != 0)).sum().to(rewards_PG.dtype)
    return torch.where(nonzero > 0, nonzero / scored_PG.sum().clamp(min=1), 1.0)


def batch_std(rewards_PG: Tensor, scored_PG: Tensor, *, population: bool = False) -> Tensor:
    """Scalar: standard deviation over all scored completions of the batch, dividing by their number minus 1.

    `population` divides by their number.
    """
    centered_PG = masked(rewards_PG - batch_mean(rewards_PG, scored_PG), scored_PG)
    return (centered_PG.square().sum() / (scored_PG.sum() - int(not population)).clamp(min=1)).sqrt()


def group_std(rewards_PG: Tensor, scored_PG: Tensor, *, population: bool = False) -> Tensor:
    """`[P, 1]`: standard deviation over the scored completions of each prompt, dividing by their number minus 1.

    `population` divides by their number.
    """
    centered_PG = masked(rewards_PG - group_mean(rewards_PG, scored_PG), scored_PG)
    degrees_P1 = (scored_PG.sum(dim=-1, keepdim=True) - int(not population)).clamp(min=1)
    return (centered_PG.square().sum(dim=-1, keepdim=True) / degrees_P1).sqrt()


def reaches(rewards: Tensor, mark: float) -> Tensor:
    """Bool: True if the reward is at least `mark`, up to the rounding of a weighted sum in float32. False for nan."""
    return rewards >= mark - 1e-6 * max(1.0, abs(mark))


def rounding(rewards_PG: Tensor, scored_PG: Tensor) -> Tensor:
    """`[P, 1]`: the largest difference of two rewards of a prompt that counts as none (RULE 11)."""
    return EQUAL_REWARDS * group_mean(rewards_PG, scored_PG).abs().clamp(min=1)


def has_signal(rewards_PG: Tensor, scored_PG: Tensor) -> Tensor:
    """`[P, 1]` bool: True if the scored rewards of the prompt differ (RULE 11).

    The largest is compared with the smallest and not with the mean: the float32 mean of equal numbers may differ.
    """
    largest_P1 = rewards_PG.masked_fill(~scored_PG, -torch.inf).amax(dim=-1, keepdim=True)
    smallest_P1 = rewards_PG.masked_fill(~scored_PG, torch.inf).amin(dim=-1, keepdim=True)
    spread_P1 = largest_P1 - smallest_P1
    return ~(spread_P1 <= rounding(rewards_PG, scored_PG))  # nan differs, so that it is not taken for no signal


def center_by_group(rewards_PG: Tensor, scored_PG: Tensor) -> Tensor:
    """`[P, G]`: reward minus group mean; exactly 0 in a group of equal rewards, even with rounding."""
    centered_PG = rewards_PG - group_mean(rewards_PG, scored_PG)
    return masked(centered_PG, scored_PG & has_signal(rewards_PG, scored_PG))


def sum_of_normalised(rewards_KPG: Tensor, weights_K: Tensor, scored_PG: Tensor, *, epsilon: float = 1e-6) -> Tensor:
    """`[P, G]`: each reward function normalised within its group, weighted, summed, divided by the batch std (GDPO).

        z_k = (R_k - mean(R_k)) / (std(R_k) + epsilon)     over the completions of the prompt that function k applies to
        A   = sum_k w_k z_k / (batch_std(sum_k w_k z_k) + epsilon)                             (arXiv:2601.05242)

    nan in `rewards_KPG` means that the function does not apply: its statistics leave out the completion. The mean over
    the batch is not subtracted, because each z_k sums to 0 over its group. So a group without signal in any reward has
    advantages of exactly 0 (RULE 11).
    """
    total_PG = torch.zeros_like(rewards_KPG[0])
    for rewards_PG, weight in zip(rewards_KPG, weights_K, strict=True):
        applies_PG = scored_PG & ~rewards_PG.isnan()
        z_PG = center_by_group(rewards_PG, applies_PG) / (group_std(rewards_PG, applies_PG) + epsilon)
        total_PG = total_PG + weight * z_PG
    return total_PG / (batch_std(total_PG, scored_PG) + epsilon)


def pass_at_k_advantages(correct_PG: Tensor, scored_PG: Tensor, k: int, *, epsilon: float = 1e-6) -> Tensor:
    """`[P, G]`: the mean, over all subsets of k answers that contain the answer, of the subset's normalised reward.

    A subset has reward 1 if any of its answers is correct. With n answers, c of them correct and n - c wrong,

        rho = 1 - C(n - c, k) / C(n, k)                    sigma = sqrt(rho (1 - rho))           (arXiv:2508.10751)
        A   = (1 - rho) / (sigma + epsilon)                                                       for a correct answer
        A   = (1 - rho - C(n - c - 1, k - 1) / C(n - 1, k - 1)) / (sigma + epsilon)               for a wrong one

    They sum to 0 over the group. They are exactly 0 if no answer is correct or if every subset has a correct one. Only
    scored answers are counted; a prompt with fewer than k of them has advantages of 0.
    """
    right_PG = correct_PG & scored_PG
    counts = zip(scored_PG.sum(dim=-1).tolist(), right_PG.sum(dim=-1).tolist(), strict=True)
    pairs = [_pass_at_k_pair(n, c, k, epsilon) for n, c in counts]
    pair_P2 = torch.tensor(pairs, dtype=torch.float64, device=scored_PG.device).reshape(-1, 2)
    return masked(torch.where(right_PG, pair_P2[:, :1], pair_P2[:, 1:]), scored_PG)


def _pass_at_k_pair(n: int, c: int, k: int, epsilon: float) -> tuple[float, float]:
    """Return the advantages of a correct and of a wrong answer. Counts are integers, so that 0 is exact."""
    if n < k:
        return 0.0, 0.0
    fail = Fraction(comb(n - c, k), comb(n, k))
    fail_with = Fraction(comb(n - c - 1, k - 1), comb(n - 1, k - 1)) if c < n else Fraction(0)
    scale = sqrt(fail * (1 - fail)) + epsilon
    return float(fail) / scale, float(fail - fail_with) / scale


def whiten(
    x_BT: Tensor,
    mask_BT: Tensor,
    *,
    over: WhitenOver = "tokens",
    mean: WhitenMean = "subtract",
    population: bool = False,
) -> Tensor:
    """`[B, T]`: x with standard deviation 1 over the trained tokens of the WHOLE rollout batch, 0 elsewhere (RULE 19).

    `over` = tokens: every token counts once, so long completions dominate; the divisor is `sqrt(variance + 1e-8)`.
    `over` = sequences: every completion counts once, with the mean of its tokens; the divisor is `std + 1e-8`.
    `mean`: "subtract" makes it 0; "restore" adds it back after the division, which scales only the deviations (rewards
    of PPO); "keep" divides x itself, so that 0 stays 0.
    `population` divides the squares by n instead of n - 1 and clamps the variance at 1e-8, as OpenRLHF does.

    If the values do not vary (equal values, or fewer than two), there is no scale: the result is 0 with "subtract",
    and x itself otherwise.

    >>> whiten(torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([[True, True, False]])).tolist()
    [[-0.7071067690849304, 0.7071067690849304, 0.0]]
    """
    require_choice("over", over, get_args(WhitenOver))
    require_choice("mean", mean, get_args(WhitenMean))
    mask_BT = mask_BT.bool()  # an integer mask would be read as indices
    values_N = x_BT[mask_BT] if over == "tokens" else _mean_of_each_row(x_BT, mask_BT)
    if not _vary(values_N):
        return masked(torch.zeros_like(x_BT) if mean == "subtract" else x_BT, mask_BT)
    center = values_N.mean() if mean != "keep" else 0.0
    white_BT = (x_BT - center) / _scale(values_N, over, population)
    return masked(white_BT + center if mean == "restore" else white_BT, mask_BT)


def _mean_of_each_row(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`[N]`: the mean of each row that has trained tokens."""
    lengths_B = mask_BT.sum(dim=-1)
    return (masked(x_BT, mask_BT).sum(dim=-1) / lengths_B.clamp(min=1))[lengths_B > 0]


def _vary(values_N: Tensor) -> bool:
    """Return true if the values differ by more than rounding (RULE 11)."""
    if values_N.numel() < 2:
        return False
    return not values_N.max() - values_N.min() <= EQUAL_REWARDS * values_N.mean().abs().clamp(min=1)  # nan differs


def _scale(values_N: Tensor, over: str, population: bool) -> Tensor:
    variance = values_N.var(correction=0 if population else 1)
    if population:
        return variance.clamp(min=WHITEN_EPSILON).sqrt()
    return (variance + WHITEN_EPSILON).sqrt() if over == "tokens" else variance.sqrt() + WHITEN_EPSILON


def return_to_go(rewards_BT: Tensor, mask_BT: Tensor, gamma: float) -> Tensor:
    """`[B, T]`: G_t = sum over s >= t of gamma^(s-t) * r_s, counting masked-in tokens only (RULE 17), 0 elsewhere.

    >>> return_to_go(torch.tensor([[0.0, 9.0, 1.0]]), torch.tensor([[1, 0, 1]]).bool(), gamma=0.5).tolist()
    [[0.5, 0.0, 1.0]]
    """
    mask_BT = mask_BT.bool()
    rewards_BT = masked(rewards_BT, mask_BT)
    if gamma == 1.0:
        return masked(rewards_BT.flip(-1).cumsum(dim=-1).flip(-1), mask_BT)
    returns_BT = torch.zeros_like(rewards_BT)
    running_B = rewards_BT.new_zeros(rewards_BT.shape[0])
    for t in range(rewards_BT.shape[1] - 1, -1, -1):
        running_B = torch.where(mask_BT[:, t], rewards_BT[:, t] + gamma * running_B, running_B)
        returns_BT[:, t] = running_B
    return masked(returns_BT, mask_BT)


def place_on_last_token(rewards_B: Tensor, mask_BT: Tensor, token_rewards_BT: Tensor | None = None) -> Tensor:
    """`[B, T]`: the reward of a completion on its last trained token, plus the rewards of single tokens; else 0.

    >>> mask_BT = torch.tensor([[False, True, True]])
    >>> place_on_last_token(torch.tensor([1.0]), mask_BT, torch.tensor([[9.0, 0.5, 0.25]])).tolist()
    [[0.0, 0.5, 1.25]]
    """
    placed_BT = masked(rewards_B[:, None].expand(mask_BT.shape), last_token(mask_BT))
    return placed_BT if token_rewards_BT is None else placed_BT + masked(token_rewards_BT, mask_BT)
