"""Code that algorithms with a critic share: rewards per token, the critic's loss, and an adaptive KL weight."""

from __future__ import annotations

from dataclasses import dataclass

from posttrain.algorithms.metrics import mean_over, spread_over
from posttrain.algorithms.settings import KLInReward
from posttrain.errors import ConfigError
from posttrain.functional.baselines import place_on_last_token
from posttrain.functional.gae import outside_value_clip, value_loss
from posttrain.functional.kl import KL_ESTIMATORS
from posttrain.functional.masks import masked, without_gradient
from posttrain.functional.shaping import clip_scores, without_eos_penalty
from posttrain.types import Batch, ExplainedVariance, Metrics, Outputs, Tensor


@dataclass(frozen=True, kw_only=True)
class KLController:
    """The state of an adaptive KL penalty."""

    kl_coef: float
    """Current weight of the KL penalty."""


def shaped_scores(rows: Batch, score_clip: float | None, missing_eos_penalty: float) -> Tensor:
    """`[B]` reward of each completion with those of its tokens, minus the penalty if it was cut before its EOS, clipped
    to ±score_clip."""
    if rows.rewards_B is None:
        raise ConfigError(
            given="a batch without rewards; its returns cannot be computed",
            allowed="rewards_B, or returns_BT",
            fix="Build it with Batch.from_experience(experience).",
        )
    total_B = rows.rewards_B if rows.token_rewards_BT is None else rows.rewards_B + _of_tokens(rows)
    if not missing_eos_penalty:
        return clip_scores(total_B, score_clip)
    if rows.truncated_B is None:
        raise ConfigError(
            given="missing_eos_penalty > 0, but the batch does not say which completions were cut",
            allowed="truncated_B",
            fix="Build it with Batch.from_experience(experience), or set missing_eos_penalty = 0.",
        )
    penalty_B = without_eos_penalty(rows.truncated_B.to(total_B.dtype), missing_eos_penalty)
    return clip_scores(total_B + penalty_B, score_clip)


def _of_tokens(rows: Batch) -> Tensor:
    """`[B]` sum of the rewards of the trained tokens."""
    assert rows.token_rewards_BT is not None
    return masked(rows.token_rewards_BT, rows.completion_mask_BT).sum(dim=-1)


def kl_before_update(rows: Batch, estimator: KLInReward) -> Tensor:
    """`[B, T]` estimate of KL(old policy || reference) on each trained token, detached."""
    if rows.old_logprobs_BT is None or rows.ref_logprobs_BT is None:
        raise ConfigError(
            given="kl_coef > 0, but old or reference log-probabilities are missing",
            allowed="kl_coef = 0, or old_logprobs_BT and ref_logprobs_BT",
            fix="Pass old_logprobs_BT and ref_logprobs_BT, or set kl_coef = 0.",
        )
    kl_BT = KL_ESTIMATORS[estimator](rows.old_logprobs_BT, rows.ref_logprobs_BT)
    return masked(kl_BT, rows.completion_mask_BT).detach()


def token_rewards(rows: Batch, scores_B: Tensor, kl_coef: float, estimator: KLInReward) -> Tensor:
    """`[B, T]` the score on the last trained token, minus kl_coef * KL on every token. If kl_coef is 0, read no KL.

    Rewards of tokens stay where they are, and the last token gets the rest of the score.
    """
    rest_B = scores_B if rows.token_rewards_BT is None else scores_B - _of_tokens(rows)
    rewards_BT = place_on_last_token(rest_B, rows.completion_mask_BT, rows.token_rewards_BT)
    return rewards_BT - kl_coef * kl_before_update(rows, estimator) if kl_coef else rewards_BT


def old_values(rows: Batch) -> Tensor:
    """`[B, T]` values before the update, detached."""
    if rows.values_BT is None:
        raise ConfigError(
            given="no values of a critic",
            allowed="values_BT, the value of the state before each token",
            fix="Pass Experience.from_rewards(..., values_BT=...).",
        )
    return rows.values_BT.detach()


VALUE_METRICS = {
    "value/loss": "mean over the trained tokens of 1/2 max((V - R)^2, (clip(V, V_old +- value_clip) - R)^2)",
    "value/clip_fraction": "share of trained tokens whose clipped branch is the larger one: no gradient",
    "value/mean": "mean over the trained tokens of V_old, the value before each token that the advantages use",
    "return/mean": "mean over the trained tokens of R = A + V_old, A before whitening",
    "value/explained_variance": "1 - Var(R - V_old) / Var(R) over the trained tokens of the step: 1 is perfect, 0 no "
    "better than a constant; nan if all returns are equal",
}


def value_term(outputs: Outputs, batch: Batch, returns_BT: Tensor, value_clip: float | None) -> tuple[Tensor, Metrics]:
    """Return the `[B, T]` loss of the critic and its metrics. An off-policy correction never weights this loss."""
    if outputs.values_BT is None:
        raise ConfigError(
            given="the batch has values of a critic, but the forward pass returned none",
            fix="Pass Outputs(logprobs_BT=..., values_BT=...).",
        )
    old_BT, mask_BT = masked(old_values(batch), batch.completion_mask_BT), batch.completion_mask_BT
    loss_BT = value_loss(outputs.values_BT, old_BT, returns_BT, value_clip)
    metrics: Metrics = {
        "value/loss": mean_over(loss_BT, mask_BT),
        "value/mean": mean_over(old_BT, mask_BT),
        "return/mean": mean_over(returns_BT, mask_BT),
        "value/explained_variance": ExplainedVariance(
            error=spread_over(returns_BT - old_BT, mask_BT), target=spread_over(returns_BT, mask_BT)
        ),
    }
    if value_clip is not None:
        stopped_BT = outside_value_clip(outputs.values_BT, old_BT, returns_BT, value_clip)
        metrics["value/clip_fraction"] = mean_over(stopped_BT.float(), mask_BT)
    return loss_BT, metrics


REWARD_METRICS = {
    "objective/scores": "mean over the completions of the score, with rewards of tokens, after missing_eos_penalty "
    "and score_clip",
    "objective/kl": "mean over the completions of the sum over their tokens of k(old_logprobs, ref_logprobs), in nats "
    "per completion: the KL in the reward, before its weight",
}


@without_gradient
def reward_metrics(rows: Batch, scores_B: Tensor, estimator: KLInReward) -> Metrics:
    """Return metrics of the two parts of the token rewards: the scores and the KL."""
    trained_B = rows.completion_mask_BT.any(dim=-1)
    metrics: Metrics = {"objective/scores": mean_over(scores_B, trained_B)}
    if rows.old_logprobs_BT is not None and rows.ref_logprobs_BT is not None:
        metrics["objective/kl"] = mean_over(kl_before_update(rows, estimator).sum(dim=-1), trained_B)
    return metrics
