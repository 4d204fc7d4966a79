"""CPO: contrastive preference optimisation (arXiv:2401.08417).

    S(y) = sum_t logprobs
    h    = beta * (S(chosen) - S(rejected))
    L    = -log sigmoid(h) + alpha * NLL(chosen)

Mean over the pairs of the step; nll_normalization selects the averaging of the NLL. It is DPO with
a uniform reference, so it needs no reference model; the likelihood term keeps the policy near the data instead.
"""

from __future__ import annotations

from posttrain.algorithms.pairs import NLLNormalization, PairLoss, pairs_of, reward_formulas
from posttrain.algorithms.settings import NonNegative, Positive, settings
from posttrain.functional.preferences import logistic
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals


@settings
class CPO(PairLoss):
    key = "cpo"
    reference_free = True
    metrics = reward_formulas("beta * sum_t logprobs")

    beta: Positive = 0.1
    """Scale of the margin, the difference of the two log-probabilities."""
    alpha: NonNegative = 1.0
    """Weight of the NLL of the chosen answer."""
    nll_normalization: NLLNormalization = "token_mean"
    """Averaging of the NLL. token_mean: mean over all chosen tokens of the step; sequence_mean: mean over the tokens
    of each chosen answer, then over pairs; sum: sum over the tokens of each chosen answer, then mean over pairs."""

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        pairs = pairs_of(outputs, batch)
        chosen_N, rejected_N = reward_2N = self.beta * pairs.log_probs()
        loss = pairs.mean(logistic(chosen_N - rejected_N), totals)
        return loss + self.alpha * pairs.nll(self.nll_normalization, totals), pairs.metrics(reward_2N)
