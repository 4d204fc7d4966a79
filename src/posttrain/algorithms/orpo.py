"""ORPO: odds ratio preference optimisation (arXiv:2403.07691).

    a(y)    = sum_t logprobs / |y|                                mean log-probability of an answer y
    odds(y) = p / (1 - p),  p = exp(a(y))                         p: the geometric mean of its token probabilities
    L       = NLL(chosen) - beta * log sigmoid(log odds(chosen) - log odds(rejected))

Mean over the pairs of the step; the NLL is averaged as nll_normalization says. Supervised fine-tuning and
preference in one stage, without a reference. log(1 - p) is computed without cancellation, a is held at -1e-7.
"""

from __future__ import annotations

from typing import ClassVar

from posttrain.algorithms.base import Card
from posttrain.algorithms.metrics import mean_over
from posttrain.algorithms.pairs import NLLNormalization, PairLoss, pairs_of, reward_formulas
from posttrain.algorithms.settings import Positive, settings
from posttrain.functional.preferences import log_odds, logistic
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals


@settings
class ORPO(PairLoss):
    key: ClassVar[str] = "orpo"
    reference_free: ClassVar[bool] = True

    beta: Positive = 0.1
    """Weight of the odds-ratio term beside the NLL; the paper's lambda."""
    nll_normalization: NLLNormalization = "token_mean"
    """token_mean: over all chosen tokens of the step; sequence_mean: per token of each answer, then over pairs; sum:
    summed over each answer, then over pairs."""

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

    card: ClassVar[Card] = Card(
        title="ORPO: odds ratio preference optimisation",
        paper="ORPO, arXiv:2403.07691",
        summary="Fine-tune on the chosen answer and push its odds above those of the rejected one, in one stage.",
        choices={
            "score": "log odds of the mean log-probability",
            "reference": "no",
            "margin": "the difference",
            "link": "log sigmoid, weighted with beta",
            "extra": "NLL of the chosen answer",
        },
        use_when="A base model is to be fine-tuned and aligned at once, without a reference.",
        avoid_when="The model is fine-tuned already, or the chosen answers are not worth imitating.",
        differs=(
            "The NLL covers the chosen answer only; TRL and the authors' code train the prompt as well (RULE 38).",
            "The odds are those of the geometric mean of the token probabilities, not of the whole answer's.",
            "In float32 log(1 - p) as it is written is -inf from p = 1 - 3e-8 on; here it is exact, and an answer that "
            "is certain has finite odds and no gradient.",
        ),
        sources={
            "beta": "0.1: the paper (Mistral), TRL; 0.2 (Llama 2) and 0.25 (Phi 2) in the paper",
            "nll_normalization": "token_mean: TRL",
        },
        metrics=reward_formulas("beta * a, a = mean over the answer of logprobs")
        | {
            "log_odds_chosen": "mean over the pairs of log odds(chosen) - log odds(rejected)",
            "log_odds_ratio": "mean over the pairs of log sigmoid of that",
        },
    )
