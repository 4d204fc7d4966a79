"""GRPO: Group Relative Policy Optimization (DeepSeekMath, arXiv:2402.03300).

    A_i = (R_i - mean(R)) / (std(R) + 1e-6)                       over the G completions of one prompt
    rho = exp(logprobs - old_logprobs)                            per token
    L   = -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) + kl_coef * KL(policy, reference)

Mean over the tokens of a completion, then over completions.
"""

from __future__ import annotations

from typing import ClassVar

from posttrain.algorithms.base import Card, PolicyGradient
from posttrain.algorithms.declared import row
from posttrain.algorithms.metrics import DUAL_CLIP_METRICS, clip_formulas
from posttrain.algorithms.settings import AboveOne, KLInLoss, NonNegative, Share, settings
from posttrain.algorithms.shared import advantages_of, group_normalized, kl_term, weighted
from posttrain.functional.ratios import clipped_surrogate, token_ratio
from posttrain.functional.reductions import sequence_mean
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class GRPO(PolicyGradient):
    key: ClassVar[str] = "grpo"
    min_group_size: ClassVar[int] = 2

    clip_low: NonNegative = 0.2
    """Lowering a token's ratio below 1 - clip_low gains nothing more."""
    clip_high: NonNegative = 0.2
    """Raising a token's ratio above 1 + clip_high gains nothing more."""
    dual_clip: AboveOne | None = None
    """The loss of a token with a negative advantage is at most dual_clip * |A|; None is off."""
    kl_coef: NonNegative = 0.0
    """Weight of the KL to the reference. 0 also means: no reference model is loaded."""
    kl_estimator: KLInLoss = "k3"
    """Read only when kl_coef > 0. k3 as in the paper, whose gradient is that of the forward KL(reference || policy);
    `_corrected` keeps the value and has the unbiased gradient of KL(policy || reference)."""
    top_entropy_quantile: Share = 1.0
    """Only this share of the tokens of an update, those of largest entropy, has a policy term; the denominator stays.
    1: all tokens. 0.2 in arXiv:2506.01939."""

    def advantages(self, experience: Experience, state: None = None) -> Tensor:
        self.require_group(experience)
        return group_normalized(experience)

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        ratio_BT = token_ratio(outputs.logprobs_BT, batch.old_logprobs_BT)
        loss_BT = clipped_surrogate(ratio_BT, advantages_of(batch), self.clip_low, self.clip_high, self.dual_clip)
        loss_BT = weighted(loss_BT, batch) + kl_term(outputs, batch, self.kl_coef, self.kl_estimator)
        loss = sequence_mean(loss_BT, batch.completion_mask_BT, totals.sequences)
        return self.finish(loss, outputs, batch, totals, clipped=ratio_BT)

    card: ClassVar[Card] = Card(
        title="GRPO: Group Relative Policy Optimization",
        paper="DeepSeekMath, arXiv:2402.03300",
        summary="The mean reward of all answers to the same prompt takes the place of a critic.",
        choices=row("group_mean group_std token clip loss sequence_mean auto none none"),
        use_when="Rewards can be verified and several answers per prompt are affordable, but a critic is not.",
        avoid_when="Almost all groups are all right or all wrong, or answers differ much in length "
        "(then Dr. GRPO or DAPO), or the model is a mixture of experts (then GSPO).",
        differs=(
            "Paper: clip_low and clip_high are separate here, and equal by default. kl_coef is 0 here, 0.04 there.",
            "TRL, verl and OpenRLHF average over all tokens by default; the paper's mean per completion is used here.",
            "TRL adds 1e-4 to the standard deviation, OpenRLHF 1e-9; 1e-6 is added here, as in verl.",
            "The estimate is biased: dividing by a standard deviation that contains the sample itself weighs prompts "
            "with rare success or rare failure more, and the mean per completion makes long wrong answers cheap. "
            "Averaged over every pair of completions of a small policy, the step has a cosine of 0.90 to the true "
            "gradient of expected reward; over every triple of a smaller one 0.59 (REINFORCE, RLOO and Dr. GRPO: 1).",
        ),
        sources={
            "clip_low": "0.2: TRL, verl, OpenRLHF (the paper does not state it)",
            "clip_high": "0.2: as clip_low",
            "kl_coef": "0: DAPO, Dr. GRPO, TRL; the paper uses 0.04",
            "kl_estimator": "k3: the paper, eq. 4",
            "top_entropy_quantile": "1: all tokens, as TRL, whose quantile is that of a micro-batch and whose entropy "
            "bonus is over the chosen tokens alone",
            "dual_clip": "off: TRL, OpenRLHF; verl uses 3",
        },
        metrics=clip_formulas() | DUAL_CLIP_METRICS,
    )
