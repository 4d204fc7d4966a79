"""SFT: supervised fine-tuning, maximum likelihood of given completions.

    L = -logprobs                                                 per trained token
    L = -sg[exp(logprobs)] * logprobs                             with `dft`

Mean over all trained tokens of the optimizer step: every token counts the same, however the step is split. Seen as a
policy gradient, the plain loss weights each token by 1 / probability; `dft` removes that weight (arXiv:2508.05629).
sg: stop-gradient.
"""

from __future__ import annotations

from posttrain.algorithms.base import Algorithm
from posttrain.algorithms.metrics import ENTROPY_METRICS, common_metrics, mean_over
from posttrain.algorithms.settings import settings
from posttrain.algorithms.shared import on_trained_tokens
from posttrain.functional.readings import number
from posttrain.functional.reductions import token_mean
from posttrain.types import Batch, ExpOfMean, Mean, Metrics, Outputs, Tensor, Totals


@settings
class SFT(Algorithm):
    key = "sft"
    data_kind = "examples"
    metrics = {
        "sft/nll": "mean of -logprobs over the trained tokens, in nats",
        "sft/perplexity": "exp(sft/nll), where sft/nll is the mean over the whole step",
        "sft/token_accuracy": "share of trained tokens that were the most likely token at their position",
        "sft/trained_fraction": "trained tokens / all tokens of the rows, including prompts",
    } | ENTROPY_METRICS

    dft: bool = False
    """If true, the loss of each token is weighted by its probability, without gradient. Very unlikely tokens then pull
    no harder than others."""

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, mask_BT = on_trained_tokens(outputs, batch), batch.completion_mask_BT
        nll_BT = -outputs.logprobs_BT
        loss_BT = nll_BT.detach().neg().exp() * nll_BT if self.dft else nll_BT
        nll = mean_over(nll_BT, mask_BT)
        metrics: Metrics = {
            "sft/nll": nll,
            "sft/perplexity": ExpOfMean(nll),
        }
        if batch.tokens is not None:
            metrics["sft/trained_fraction"] = Mean(number(mask_BT.sum()), number(batch.tokens.lengths_B.sum()))
        if outputs.top1_BT is not None:
            metrics["sft/token_accuracy"] = mean_over(outputs.top1_BT.double(), mask_BT)
        return token_mean(loss_BT, mask_BT, totals.tokens), metrics | common_metrics(outputs, batch)
