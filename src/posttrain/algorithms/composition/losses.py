"""The tables of `policy_gradient` for the rest of the loss: aggregations, filters and places of the KL."""

from __future__ import annotations

import torch

from posttrain.algorithms.algorithm import require_whole_update
from posttrain.algorithms.composition.options import Aggregation, Filter, KLPlace, Values
from posttrain.algorithms.critic import value_term
from posttrain.algorithms.declared import Need
from posttrain.algorithms.deepseek_v32 import left_behind
from posttrain.algorithms.metrics import mean_over
from posttrain.errors import ConfigError
from posttrain.functional import reductions
from posttrain.functional.masks import masked
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals


def sequences(p: Values, totals: Totals) -> int:
    """Number of completions in the denominator (RULE 8)."""
    return totals.rows if p["count_masked_sequences"] else totals.sequences


def fixed_length(p: Values, loss_BT: Tensor, batch: Batch, totals: Totals) -> Tensor:
    if p["max_completion_length"] is None:
        raise ConfigError(
            given="aggregation = fixed_length_mean without max_completion_length",
            allowed="the constant length that token sums are divided by, an integer >= 1",
            fix="Set max_completion_length. A run sets it from sampling.max_completion_length.",
        )
    length, mask_BT = p["max_completion_length"], batch.completion_mask_BT
    return reductions.fixed_length_mean(loss_BT, mask_BT, sequences(p, totals), length)


def prompt_mean(p: Values, loss_BT: Tensor, batch: Batch, totals: Totals) -> Tensor:
    if (weights_B := batch.prompt_weights_B) is None:  # these rows are the whole update
        require_whole_update(batch, totals, "the completions of all prompts")
        weights_B = prompt_weights(batch)
    return reductions.weighted_sum(loss_BT, batch.completion_mask_BT, weights_B)


def prompt_weights(batch: Batch) -> Tensor:
    """`[B]`: 1 / (prompts * trained tokens of the row's prompt), counted over the rows of a whole update."""
    lengths_B = batch.completion_mask_BT.sum(dim=-1)
    same_BB = batch.groups_B[:, None] == batch.groups_B
    tokens_B = (same_BB * lengths_B).sum(dim=-1)
    prompts = len(torch.unique(batch.groups_B[tokens_B > 0]))
    return 1 / (max(prompts, 1) * tokens_B.clamp(min=1)).double()


def critic_loss(p: Values, outputs: Outputs, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
    """Return value_coef times the mean of the critic's loss over the tokens of the step, and its metrics."""
    if batch.returns_BT is None:
        raise ConfigError(
            given="baseline = critic, but a batch without returns",
            allowed="returns_BT",
            fix="Build it with algorithm.to_batch(experience).",
        )
    value_BT, metrics = value_term(outputs, batch, batch.returns_BT.detach(), p["value_clip"])
    return p["value_coef"] * reductions.token_mean(value_BT, batch.completion_mask_BT, totals.tokens), metrics


def without(dropped_B1: Tensor, loss_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Metrics]:
    """Set the loss of dropped completions to 0. They stay in the denominator."""
    share = mean_over(dropped_B1.float(), mask_BT.any(dim=-1, keepdim=True))
    return masked(loss_BT, ~dropped_B1), {"policy/dropped_fraction": share}


COUNTED = {"count_masked_sequences": False}
AGGREGATIONS = {
    "token_mean": Aggregation(
        reduce=lambda p, x_BT, batch, totals: reductions.token_mean(x_BT, batch.completion_mask_BT, totals.tokens)
    ),
    "sequence_mean": Aggregation(
        reduce=lambda p, x_BT, batch, totals: reductions.sequence_mean(
            x_BT, batch.completion_mask_BT, sequences(p, totals)
        ),
        reads=COUNTED,
    ),
    "sequence_sum": Aggregation(
        reduce=lambda p, x_BT, batch, totals: reductions.sequence_sum(
            x_BT, batch.completion_mask_BT, sequences(p, totals)
        ),
        reads=COUNTED,
    ),
    "fixed_length_mean": Aggregation(reduce=fixed_length, reads=COUNTED | {"max_completion_length": None}),
    "prompt_mean": Aggregation(reduce=prompt_mean, weights=prompt_weights),
}

ENTROPY = {"top_entropy_quantile": 1.0}
FILTERS = {
    "none": Filter(reads=ENTROPY),
    "signal": Filter(reads=ENTROPY, needs=frozenset({"signal"})),
    "off_policy_negatives": Filter(
        drop=lambda p, outputs, batch: left_behind(outputs, batch, p["max_negative_divergence"]),
        reads=ENTROPY | {"max_negative_divergence": 0.5},
        needs=frozenset({"old"}),
    ),
}

IN_LOSS = ("k3_corrected", "k1_corrected", "k2_corrected", "k2", "k3")
IN_REWARD = frozenset[Need]({"reference", "old_for_advantages"})
KL_PLACES = {
    "none": KLPlace(),
    "reward": KLPlace(
        in_reward="token",
        reads={"kl_coef": 0.0, "kl_estimator": "k1", "gamma": 1.0},
        asks=IN_REWARD,
        estimators=("k1", "k2", "k3"),
    ),
    "reward_sequence": KLPlace(
        in_reward="completion", reads={"kl_coef": 0.0, "kl_estimator": "k1"}, asks=IN_REWARD, estimators=("k1",)
    ),
    "loss": KLPlace(
        in_loss=True,
        reads={"kl_coef": 0.0, "kl_estimator": "k3"},
        asks=frozenset[Need]({"reference"}),
        estimators=IN_LOSS,
    ),
}
