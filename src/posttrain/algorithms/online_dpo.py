"""Online DPO: DPO on pairs that the current policy samples and a reward orders (OAIF, arXiv:2402.04792).

    y_1 .. y_G ~ policy,   s_i = reward(y_i) - missing_eos_penalty   if y_i was cut before its EOS, else reward(y_i)
    chosen, rejected = best and worst answer of the group by s that differ, or every two answers (pairs = all)
    r(y) = sum_t (logprobs - ref_logprobs),   h = beta * (r(chosen) - r(rejected))
    L    = -log sigmoid(h)                                        loss = dpo
           (r(chosen) - r(rejected) - 1 / (2 beta))^2             loss = ipo: beta is the paper's tau
           max(0, 1 - h)                                          loss = hinge (SLiC)

Mean over the pairs of the step. A pair with equal scores or equal answers is a tie and trains nothing (RULE 42). With
label_smoothing e: (1 - e) L(h) + e L(-h). The gradient does not pass through the sampling.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import Field

from posttrain.algorithms.base import Algorithm, Need
from posttrain.algorithms.metrics import mean_over
from posttrain.algorithms.pairs import LOG_RATIO_METRICS, pairs_of
from posttrain.algorithms.settings import BelowHalf, NonNegative, Positive, settings
from posttrain.functional.kl import k1, k3
from posttrain.functional.pairing import Compared, best_against_worst, compared, every_two, same_answers
from posttrain.functional.preferences import hinge, logistic, smoothed, summed
from posttrain.types import Batch, Experience, Mean, Metrics, Outputs, Tensor, Totals


@settings
class OnlineDPO(Algorithm):
    key = "online_dpo"
    data_kind = "prompts"
    min_group_size = 2
    learns_off_policy = True
    metrics = LOG_RATIO_METRICS | {
        "ties": "share of the compared pairs with equal scores or equal answers",
        "score/mean": "mean over the scored completions of s = reward - missing_eos_penalty if cut",
        "score/margin": "mean of s(chosen) - s(rejected) over the pairs that are not ties",
        "eos_fraction": "share of completions that ended with their EOS or a stop string",
        "kl": "mean over the tokens of all scored completions of k3 = exp(-delta) - 1 + delta (at most 10), "
        "delta = sampling_logprobs - ref_logprobs, for the policy that sampled",
        "objective/kl": "mean over the scored completions of sum_t delta, in nats",
    }

    link: Literal["dpo", "ipo", "hinge"] = Field(default="dpo", alias="loss")
    """Loss as a function of the margin: DPO's, IPO's on summed log-ratios, or SLiC's hinge."""
    beta: Positive = 0.1
    """Strength of the implicit KL constraint: a larger beta keeps the policy closer to the reference. For ipo it is
    tau: the loss drives log-ratios 1 / (2 beta) apart."""
    ties: Literal["skip", "first"] = "skip"
    """Treatment of answers with equal scores. skip: they train nothing; first: the answer sampled first is chosen."""
    pairs: Literal["best_worst", "all"] = "best_worst"
    """Pairs of each group. best_worst: its best and its worst answer; all: every two answers, so that each answer goes
    through the model group_size - 1 times."""
    missing_eos_penalty: NonNegative = 0.0
    """Penalty that is subtracted from the score of an answer that was cut before its EOS."""
    label_smoothing: BelowHalf = 0.0
    """Probability that the reward orders a pair wrongly."""

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"reference"})

    def scores(self, experience: Experience) -> Tensor:
        """`[P, G]` scores that order the answers of a prompt; NaN for answers without a reward."""
        return experience.rewards_PG - self.missing_eos_penalty * experience.truncated_PG

    def compare(self, experience: Experience) -> Compared:
        scores_PG, usable_PG = self.scores(experience), experience.scored_PG & (experience.trained_PG > 0)
        tokens, size = experience.tokens, experience.group_size
        same_PGG = None if tokens is None else same_answers(tokens.input_ids_BT, tokens.lengths_B, size)
        two = every_two(scores_PG) if self.pairs == "all" else best_against_worst(scores_PG, usable_PG, same_PGG)
        return compared(scores_PG, usable_PG, same_PGG, *two)

    def to_batch(self, experience: Experience, state: Any = None) -> Batch:
        """Return the rows of the pairs: chosen rows, then rejected rows. A completion appears once for each pair."""
        self.require_group(experience)
        experience.refuse_token_rewards()
        experience.require_rewards()
        found = self.compare(experience)
        used_PK = found.decided_PK | found.tied_PK if self.ties == "first" else found.decided_PK
        first_row_P1 = experience.group_size * torch.arange(len(used_PK), device=used_PK.device)[:, None]
        rows_2N = torch.stack([(first_row_P1 + side_PK)[used_PK] for side_PK in found[:2]])
        pair_2N = torch.arange(rows_2N.shape[1], device=rows_2N.device).expand(2, -1)
        batch = Batch.from_experience(experience).rows(rows_2N.flatten())
        is_chosen_2N = torch.tensor([[True], [False]], device=rows_2N.device).expand_as(rows_2N)
        return replace(batch, groups_B=pair_2N.flatten(), chosen_B=is_chosen_2N.flatten())

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        pairs = pairs_of(outputs, batch)
        chosen_N, rejected_N = reward_2N = self.beta * pairs.log_ratios()
        loss_N = smoothed(self.margin_loss, chosen_N - rejected_N, self.label_smoothing)
        return pairs.mean(loss_N, totals), pairs.metrics(reward_2N)

    def margin_loss(self, h_N: Tensor) -> Tensor:
        if self.link == "ipo":
            return ((h_N - 0.5) / self.beta).square()
        return logistic(h_N) if self.link == "dpo" else hinge(h_N)

    def step_metrics(self, experience: Experience, batch: Batch) -> Metrics:
        scores_PG, found = self.scores(experience), self.compare(experience)
        margin_PK = scores_PG.gather(1, found.chosen_PK) - scores_PG.gather(1, found.rejected_PK)
        ended_PG = ~experience.truncated_PG
        metrics: Metrics = {
            "ties": Mean(float(found.tied_PK.sum()), float((found.tied_PK | found.decided_PK).sum())),
            "score/mean": mean_over(scores_PG, experience.scored_PG),
            "score/margin": mean_over(margin_PK, found.decided_PK),
            "eos_fraction": Mean(float(ended_PG.sum()), ended_PG.numel()),
        }
        sampled_BT, reference_BT = experience.sampling_logprobs_BT, experience.ref_logprobs_BT
        if sampled_BT is not None and reference_BT is not None:
            mask_BT = experience.scored_mask_BT
            k1_B = summed(k1(sampled_BT, reference_BT), mask_BT)
            metrics["kl"] = mean_over(k3(sampled_BT, reference_BT), mask_BT)
            metrics["objective/kl"] = mean_over(k1_B, mask_BT.any(dim=-1))
        return metrics
