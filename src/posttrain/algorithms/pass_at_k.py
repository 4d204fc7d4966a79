"""Pass@k training: maximise the probability that at least one of k answers is correct (arXiv:2508.10751).

    rho   = 1 - C(n - c, k) / C(n, k)                             n answers to the prompt, c of them correct
    sigma = sqrt(rho (1 - rho))
    A     = (1 - rho) / (sigma + 1e-6)                                                      of a correct answer
    A     = (1 - rho - C(n - c - 1, k - 1) / C(n - 1, k - 1)) / (sigma + 1e-6)              of a wrong one
    L     = -min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A),  ratio = exp(logprobs - old_logprobs) per token

Mean over all tokens of the step. The advantage of an answer is an exact average over all subsets of k answers that
contain it. The reward of a subset is the reward of its best answer, normalised. No subsets are sampled.
"""

from __future__ import annotations

from posttrain.algorithms.base import PolicyGradient
from posttrain.algorithms.metrics import clip_formulas
from posttrain.algorithms.settings import Count, Finite, NonNegative, settings
from posttrain.algorithms.shared import advantages_of, weighted
from posttrain.functional.baselines import pass_at_k_advantages, reaches
from posttrain.functional.ratios import clipped_surrogate, token_ratio
from posttrain.functional.reductions import token_mean
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class PassAtK(PolicyGradient):
    key = "pass_at_k"
    min_group_size = 2
    metrics = clip_formulas()

    k: Count = 4
    """Number of answers of which at least one should be correct; less than sampling.group_size. 1 is GRPO with rewards
    of right or wrong, the population's standard deviation and the mean over tokens."""
    correct_at: Finite = 1.0
    """Reward from which a completion counts as correct. Every other completion counts as wrong."""
    clip_low: NonNegative = 0.2
    """Lower clip bound, as a distance from 1: a token with A < 0 gains nothing from a ratio below 1 - clip_low."""
    clip_high: NonNegative = 0.2
    """Upper clip bound, as a distance from 1: a token with A > 0 gains nothing from a ratio above 1 + clip_high."""

    @property
    def correct_from(self) -> float:
        return self.correct_at

    @property
    def group_size_needed(self) -> int:
        """Smallest group size, k + 1: with k answers there is only one subset, and all advantages are 0."""
        return max(self.k + 1, self.min_group_size)

    def advantages(self, experience: Experience, state: None = None) -> Tensor:
        self.require_group(experience, max(self.k, self.min_group_size))
        rewards_PG, scored_PG = experience.rewards_PG, experience.scored_PG
        advantages_PG = pass_at_k_advantages(reaches(rewards_PG, self.correct_at), scored_PG, self.k)
        return experience.broadcast(advantages_PG.to(rewards_PG.dtype))

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        ratio_BT = token_ratio(outputs.logprobs_BT, batch.old_logprobs_BT)
        loss_BT = clipped_surrogate(ratio_BT, advantages_of(batch), self.clip_low, self.clip_high)
        loss = token_mean(weighted(loss_BT, batch), batch.completion_mask_BT, totals.tokens)
        return self.finish(loss, outputs, batch, totals, clipped=ratio_BT)
