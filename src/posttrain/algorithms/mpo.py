"""MPO: mixed preference optimisation (InternVL, arXiv:2411.10442).

    r(y) = sum_t (logprobs - ref_logprobs),  s = beta * r
    L    = dpo_weight * -log sigmoid(s(chosen) - s(rejected))                          which answer is better
         + bco_weight * (-log sigmoid(s(chosen)) - log sigmoid(-s(rejected)))          whether each is good
         + alpha      * NLL(chosen)                                                    how to write the good one

Mean over the pairs of the step; NLL over the tokens of the chosen answers.
"""

from __future__ import annotations

from posttrain.algorithms.pairs import NLLNormalization, PairLoss, pairs_of
from posttrain.algorithms.settings import NonNegative, Positive, settings
from posttrain.functional.preferences import logistic
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals


@settings
class MPO(PairLoss):
    key = "mpo"

    beta: Positive = 0.1
    """Strength of the implicit KL constraint: a larger beta keeps the policy closer to the reference."""
    dpo_weight: NonNegative = 0.8
    """Weight of the preference between the two answers."""
    bco_weight: NonNegative = 0.2
    """Weight of the quality term, which rates each answer on its own."""
    alpha: NonNegative = 1.0
    """Weight of the negative log-likelihood of the chosen answers."""
    nll_normalization: NLLNormalization = "token_mean"
    """Averaging of the NLL. token_mean: mean over all chosen tokens of the step; sequence_mean: mean over the tokens
    of each chosen answer, then over pairs; sum: sum over the tokens of each chosen answer, then mean over pairs."""

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        pairs = pairs_of(outputs, batch)
        chosen_N, rejected_N = reward_2N = self.beta * pairs.log_ratios()
        preference_N = logistic(chosen_N - rejected_N)
        quality_N = logistic(chosen_N) + logistic(-rejected_N)
        loss = pairs.mean(self.dpo_weight * preference_N + self.bco_weight * quality_N, totals)
        return loss + self.alpha * pairs.nll(self.nll_normalization, totals), pairs.metrics(reward_2N)
