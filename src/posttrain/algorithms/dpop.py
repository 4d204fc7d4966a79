"""DPOP: DPO-positive, with a penalty on a chosen answer that becomes less likely (Smaug, arXiv:2402.13228).

    r(y) = sum_t (logprobs - ref_logprobs)
    h    = beta * (r(chosen) - r(rejected) - penalty * max(0, -r(chosen)))
    L    = -log sigmoid(h) + alpha * NLL(chosen)

Mean over the pairs of the step. The penalty is 0 as long as the chosen answer is at least as likely as under the
reference; its gradient at exactly that point is 0.
"""

from __future__ import annotations

from posttrain.algorithms.metrics import mean_over
from posttrain.algorithms.pairs import LOG_RATIO_METRICS, NLLNormalization, PairLoss, pairs_of
from posttrain.algorithms.settings import NonNegative, Positive, settings
from posttrain.functional.preferences import logistic
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals


@settings
class DPOP(PairLoss):
    key = "dpop"
    metrics = LOG_RATIO_METRICS | {
        "rewards/penalties": "mean over the pairs of penalty * max(0, -R(chosen)), which is subtracted from the margin"
    }

    beta: Positive = 0.3
    """Strength of the implicit KL constraint: a larger beta keeps the policy closer to the reference."""
    penalty: NonNegative = 50.0
    """Weight of the penalty on a chosen answer that became less likely, relative to the margin. With 0 it is DPO."""
    alpha: NonNegative = 0.0
    """Weight of the NLL of the chosen answer."""
    nll_normalization: NLLNormalization = "token_mean"
    """Averaging of the NLL, read only if alpha > 0. token_mean: mean over all chosen tokens of the step; sequence_mean:
    mean over the tokens of each chosen answer, then over pairs; sum: sum over the tokens of each chosen answer, then
    mean over pairs."""

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        pairs = pairs_of(outputs, batch)
        chosen_N, rejected_N = reward_2N = self.beta * pairs.log_ratios()
        penalty_N = self.penalty * (-chosen_N).relu()
        loss = pairs.mean(logistic(chosen_N - rejected_N - penalty_N), totals)
        if self.alpha:
            loss = loss + self.alpha * pairs.nll(self.nll_normalization, totals)
        return loss, pairs.metrics(reward_2N) | {"rewards/penalties": mean_over(penalty_N, pairs.whole_N)}
