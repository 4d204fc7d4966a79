"""RPO: DPO with a likelihood term on the chosen answer (iterative RPO, arXiv:2404.19733; RPO, arXiv:2405.16436).

    h = beta * (r(chosen) - r(rejected)),  r(y) = sum_t (logprobs - ref_logprobs)
    L = -log sigmoid(h) + alpha * NLL(chosen)

Mean over the pairs of the step; nll_normalization selects the averaging of the NLL. The term keeps the chosen answer
likely. DPO alone may make it less likely, as long as the probability of the rejected answer falls faster.
"""

from __future__ import annotations

from posttrain.algorithms.pairs import NLLNormalization, PairLoss, pairs_of
from posttrain.algorithms.settings import NonNegative, Positive, settings
from posttrain.functional.preferences import logistic
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals


@settings
class RPO(PairLoss):
    key = "rpo"

    beta: Positive = 0.1
    """Strength of the implicit KL constraint: a larger beta keeps the policy closer to the reference."""
    alpha: NonNegative = 1.0
    """Weight of the NLL of the chosen answer. With 0 the loss is DPO's."""
    nll_normalization: NLLNormalization = "token_mean"
    """Averaging of the NLL. token_mean: mean over all chosen tokens of the step; sequence_mean: mean over the tokens
    of each chosen answer, then over pairs; sum: sum over the tokens of each chosen answer, then mean over pairs."""

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        pairs = pairs_of(outputs, batch)
        chosen_N, rejected_N = reward_2N = self.beta * pairs.log_ratios()
        loss = pairs.mean(logistic(chosen_N - rejected_N), totals)
        return loss + self.alpha * pairs.nll(self.nll_normalization, totals), pairs.metrics(reward_2N)
