"""SFT: supervised fine-tuning, maximum likelihood of given completions.

    L = -logprobs                                                 per trained token

Mean over all trained tokens of the optimizer step: every token counts the same, however the step is split.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from posttrain.algorithms.base import Algorithm, Card, DataKind
from posttrain.algorithms.metrics import ENTROPY_METRICS, common_metrics, mean_over
from posttrain.algorithms.settings import settings
from posttrain.algorithms.shared import on_trained_tokens
from posttrain.functional.reductions import token_mean
from posttrain.types import Batch, Metrics, Outputs, Totals


@settings
class SFT(Algorithm):
    key: ClassVar[str] = "sft"
    data_kind: ClassVar[DataKind] = "examples"

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs = on_trained_tokens(outputs, batch)
        loss = token_mean(-outputs.logprobs_BT, batch.completion_mask_BT, totals.tokens)
        nll = mean_over(-outputs.logprobs_BT, batch.completion_mask_BT)
        return loss, {"sft/nll": nll} | common_metrics(outputs, batch)

    card: ClassVar[Card] = Card(
        title="SFT: supervised fine-tuning",
        paper="Maximum likelihood",
        summary="Raise the probability of the given completions.",
        choices={"aggregation": "mean over all trained tokens of the step (A1)"},
        use_when="There are good answers to imitate, or the model cannot yet produce the format that a reward needs.",
        avoid_when="The task is verifiable and the model already solves some of it: then sample and reward.",
        differs=(
            "TRL and others that average micro-batch means weigh short batches more; here every token counts once.",
        ),
        metrics={"sft/nll": "mean of -logprobs over the trained tokens, in nats; exp of it is the perplexity"}
        | ENTROPY_METRICS,
    )
