"""ORPO: odds ratio preference optimisation (arXiv:2403.07691).

    a(y)    = sum_t logprobs / |y|                                mean log-probability of an answer y
    odds(y) = p / (1 - p),  p = exp(a(y))                         p: the geometric mean of its token probabilities
    L       = NLL(chosen) - beta * log sigmoid(log odds(chosen) - log odds(rejected))

Mean over the pairs of the step; nll_normalization selects the averaging of the NLL. It combines supervised
fine-tuning and preference optimisation in one stage, without a reference. log(1 - p) is computed without
cancellation; a is at most -1e-7.
"""

from __future__ import annotations

from posttrain.algorithms.metrics import mean_over
from posttrain.algorithms.pairs import NLLNormalization, PairLoss, pairs_of, reward_formulas
from posttrain.algorithms.settings import Positive, settings
from posttrain.functional.preferences import log_odds, logistic
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals


@settings
class ORPO(PairLoss):
    key = "orpo"
    reference_free = True
    metrics = reward_formulas("beta * a, a = mean over the answer of logprobs") | {
        "log_odds_chosen": "mean over the pairs of log odds(chosen) - log odds(rejected)",
        "log_odds_ratio": "mean over the pairs of log sigmoid(log odds(chosen) - log odds(rejected))",
    }

    beta: Positive = 0.1
    """Weight of the odds-ratio term relative to the NLL; the paper's lambda."""
    nll_normalization: NLLNormalization = "token_mean"
    """Averaging of the NLL. token_mean: mean over all chosen tokens of the step; sequence_mean: mean over the tokens
    of each chosen answer, then over pairs; sum: sum over the tokens of each chosen answer, then mean over pairs."""

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        pairs = pairs_of(outputs, batch)
        average_2N = pairs.mean_log_probs()
        chosen_N, rejected_N = log_odds(average_2N)
        loss_N = logistic(chosen_N - rejected_N)
        loss = pairs.nll(self.nll_normalization, totals) + self.beta * pairs.mean(loss_N, totals)
        metrics = pairs.metrics(self.beta * average_2N)
        metrics["log_odds_chosen"] = mean_over(chosen_N - rejected_N, pairs.whole_N)
        metrics["log_odds_ratio"] = mean_over(-loss_N, pairs.whole_N)
        return loss, metrics
