"""DPPO: Divergence Proximal Policy Optimization (arXiv:2602.04879).

    A_i = (R_i - mean(R)) / (std(R) + 1e-6)                       over the G completions of one prompt
    p   = exp(logprobs)                                           the probability of the sampled token
    D   = |p - p_old|, or the KL between (p_old, 1 - p_old) and (p, 1 - p)
    M   = 0 where A > 0, p > p_old and D > divergence_high, or A <= 0, p < p_old and D > divergence_low; else 1
    L   = -sg[min(rho, max_ratio) M] A logprobs                   rho = exp(logprobs - old_logprobs)

Mean over all tokens of the step. A ratio says little about how far a distribution has moved: from 1e-5 to 1e-3 it is
100 and nearly nothing has changed, from 0.99 to 0.8 it is 0.8 and much has. So probability is bounded, not its ratio.
"""

from __future__ import annotations

from typing import ClassVar

from posttrain.algorithms.base import Card, Need, PolicyGradient
from posttrain.algorithms.declared import biased, row
from posttrain.algorithms.metrics import band_formulas, band_metrics, mean_over
from posttrain.algorithms.settings import AboveOne, NonNegative, settings
from posttrain.algorithms.shared import advantages_of, group_normalized, weighted
from posttrain.functional.ratios import token_ratio
from posttrain.functional.reductions import token_mean
from posttrain.functional.trust_regions import Divergence, divergence_mask, moved_too_far, weight_clip
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class DPPO(PolicyGradient):
    key: ClassVar[str] = "dppo"
    min_group_size: ClassVar[int] = 2
    auto_correction: ClassVar[str] = "bypass"
    always_needs: ClassVar[frozenset[Need]] = frozenset({"old"})

    divergence: Divergence = "tv"
    """How the movement of the sampled token's probability is measured: tv is |p - p_old|, kl the binary KL."""
    divergence_low: NonNegative = 0.15
    """A token with a negative advantage gains nothing by falling further than this. With kl use about 0.05."""
    divergence_high: NonNegative = 0.15
    """A token with a positive advantage gains nothing by rising further than this. With kl use about 0.05."""
    max_ratio: AboveOne = 20.0
    """The weight of a token is at most this."""

    def advantages(self, experience: Experience, state: None = None) -> Tensor:
        self.require_group(experience)
        return group_normalized(experience)

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        mask_BT, advantages_BT = batch.completion_mask_BT, advantages_of(batch)
        moved = (outputs.logprobs_BT, batch.old_logprobs_BT)
        bounds = (self.divergence_low, self.divergence_high, self.divergence)
        ratio_BT = token_ratio(*moved)
        weight_BT = weight_clip(ratio_BT, None, self.max_ratio) * divergence_mask(*moved, advantages_BT, *bounds)
        loss = token_mean(weighted(-weight_BT * advantages_BT * outputs.logprobs_BT, batch), mask_BT, totals.tokens)
        metrics = band_metrics(*moved_too_far(*moved, *bounds), advantages_BT, mask_BT)
        metrics["policy/weight_clip_fraction"] = mean_over((ratio_BT > self.max_ratio).float(), mask_BT)
        return self.finish(loss, outputs, batch, totals, metrics)

    card: ClassVar[Card] = Card(
        title="DPPO: Divergence Proximal Policy Optimization",
        paper="Rethinking the Trust Region in LLM Reinforcement Learning, arXiv:2602.04879",
        summary="A bound on how far a token's probability moves in place of a bound on its ratio.",
        choices=row("group_mean group_std token divergence_mask none token_mean auto none none"),
        use_when="A batch is used for several updates, and rare tokens should be free to become likely while likely "
        "ones are held.",
        avoid_when="Each batch is used for one update: nothing has moved, and nothing is bounded.",
        differs=(
            "The movement is measured from the policy that sampled, as the paper recommends, so that no other "
            "correction is multiplied onto the weight.",
            "The authors' recipe centres without dividing by the standard deviation and sums over a constant length; "
            "here the row is GRPO's advantage and the mean over all tokens.",
            "verl takes max_ratio from clip_ratio_c, which is 3 unless set. Its KL adds 1e-8 to 1 - p, as here.",
            biased(0.893, 0.732),
        ),
        sources={
            "divergence": "tv: the authors' recipe in verl",
            "divergence_low": "0.15: the authors' recipe in verl; 0.05 with kl",
            "divergence_high": "0.15: the authors' recipe in verl; 0.05 with kl",
            "max_ratio": "20: recommended with the method; verl uses 3 unless set",
        },
        metrics=band_formulas("trained tokens", "p < p_old and D > divergence_low", "p > p_old and D > divergence_high")
        | {"policy/weight_clip_fraction": "share of trained tokens with rho > max_ratio"},
    )
