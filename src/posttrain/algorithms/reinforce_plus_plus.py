"""REINFORCE++: REINFORCE with the stabilisers of PPO, normalised over the whole batch (arXiv:2501.03262).

    r_t = R on the last token, minus kl_coef * log(old / reference) on every token
    G_t = sum over s >= t of gamma^(s-t) r_s
    A_t = (G_t - mean(G)) / sqrt(var(G) + 1e-8)                   over all tokens of the rollout batch
    rho = exp(logprobs - old_logprobs)                            per token
    L   = -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A)

Mean over all tokens of the step.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from posttrain.algorithms.base import Card, PolicyGradient
from posttrain.algorithms.declared import biased, row
from posttrain.algorithms.metrics import clip_formulas
from posttrain.algorithms.returns import token_returns
from posttrain.algorithms.settings import NonNegative, UnitInterval, settings
from posttrain.algorithms.shared import advantages_of, weighted
from posttrain.functional.baselines import whiten
from posttrain.functional.ratios import clipped_surrogate, token_ratio
from posttrain.functional.reductions import token_mean
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class ReinforcePlusPlus(PolicyGradient):
    key: ClassVar[str] = "reinforce_plus_plus"
    reads_token_rewards: ClassVar[bool] = True
    kl_in_reward: ClassVar[bool] = True

    clip_low: NonNegative = 0.2
    """Lowering a token's ratio below 1 - clip_low gains nothing more."""
    clip_high: NonNegative = 0.2
    """Raising a token's ratio above 1 + clip_high gains nothing more."""
    kl_coef: NonNegative = 0.0
    """Weight of the KL to the reference, subtracted from the reward of each token (k1)."""
    gamma: UnitInterval = 1.0
    """Discount per token."""
    whiten_over: Literal["tokens", "sequences"] = "tokens"
    """What counts once in the mean and the variance of the returns: each token, so that long completions dominate, or
    each completion."""

    def advantages(self, experience: Experience, state: None = None) -> Tensor:
        returns_BT = token_returns(experience, self.kl_coef, self.gamma)
        return whiten(returns_BT, experience.scored_mask_BT, over=self.whiten_over)

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        ratio_BT = token_ratio(outputs.logprobs_BT, batch.old_logprobs_BT)
        loss_BT = clipped_surrogate(ratio_BT, advantages_of(batch), self.clip_low, self.clip_high)
        loss = token_mean(weighted(loss_BT, batch), batch.completion_mask_BT, totals.tokens)
        return self.finish(loss, outputs, batch, totals, clipped=ratio_BT)

    card: ClassVar[Card] = Card(
        title="REINFORCE++",
        paper="REINFORCE++, arXiv:2501.03262",
        summary="Returns are normalised over all tokens of the batch, so that neither a critic nor a group is needed.",
        choices=row("none whiten_tokens token clip reward token_mean auto none none"),
        use_when="There is one answer per prompt, or a reward model scores everything on one scale.",
        avoid_when="Prompts differ much in difficulty: one mean for all of them rewards easy prompts and punishes hard "
        "ones (then REINFORCE++-baseline, RLOO or GRPO).",
        differs=(
            "The statistics are those of the whole rollout, never of a micro-batch; a return that does not vary gives "
            "advantages of 0.",
            "The variance divides by n - 1 and has 1e-8 added, as in verl; OpenRLHF divides by n and holds it at 1e-8.",
            "The estimate is biased: the mean and the deviation contain the sample itself, and both are weighted by "
            "length.",
            biased(0.908, 0.695),
        ),
        sources={
            "clip_low": "0.2: OpenRLHF, verl",
            "clip_high": "0.2: OpenRLHF, verl",
            "kl_coef": "0: verl; OpenRLHF uses 0.01",
            "gamma": "1: OpenRLHF, verl",
            "whiten_over": "tokens: the paper's implementations",
        },
        metrics=clip_formulas(),
    )
