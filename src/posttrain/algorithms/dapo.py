"""DAPO: Decoupled Clip and Dynamic sAmpling Policy Optimization (arXiv:2503.14476).

    R~_i = R_i + penalty(length_i)                                0 … -1 over the last overlong_buffer tokens
    A_i  = (R~_i - mean(R~)) / (std(R~) + 1e-6)                   over the G completions of one prompt
    rho  = exp(logprobs - old_logprobs)                           per token
    L    = -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) + kl_coef * KL(policy, reference)

Mean over all tokens of the step. Prompts whose completions all earn the same reward, before any penalty, are replaced
by others until the step is full (RULE 22). The paper has no KL: kl_coef = 0, the default.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from posttrain.algorithms.base import Card, PolicyGradient
from posttrain.algorithms.declared import biased, row
from posttrain.algorithms.metrics import DUAL_CLIP_METRICS, clip_formulas
from posttrain.algorithms.settings import AboveOne, Count, CountOrZero, KLInLoss, NonNegative, Share, settings
from posttrain.algorithms.shared import advantages_of, group_normalized, kl_term, weighted
from posttrain.errors import ConfigError
from posttrain.functional.ratios import clipped_surrogate, token_ratio
from posttrain.functional.reductions import token_mean
from posttrain.functional.shaping import soft_overlong
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class DAPO(PolicyGradient):
    key: ClassVar[str] = "dapo"
    min_group_size: ClassVar[int] = 2

    clip_low: NonNegative = 0.2
    """Lowering a token's ratio below 1 - clip_low gains nothing more."""
    clip_high: NonNegative = 0.28
    """Raising a token's ratio above 1 + clip_high gains nothing more; wider than clip_low, so that rare tokens can
    become likely ("clip-higher")."""
    dual_clip: AboveOne | None = None
    """The loss of a token with a negative advantage is at most dual_clip * |A|; None is off."""
    kl_coef: NonNegative = 0.0
    """Weight of the KL to the reference. 0 also means: no reference model is loaded."""
    kl_estimator: KLInLoss = "k3"
    """Read only when kl_coef > 0. The gradient of k3 is that of the forward KL(reference || policy);
    `_corrected` keeps the value and has the unbiased gradient of KL(policy || reference)."""
    top_entropy_quantile: Share = 1.0
    """Only this share of the tokens of an update, those of largest entropy, has a policy term; the denominator stays.
    1: all tokens. 0.2 in arXiv:2506.01939."""
    overlong_buffer: CountOrZero | None = None
    """Tokens before max_completion_length over which a penalty grows from 0 to 1, which is taken off the reward before
    the group's statistics; None or 0 is off."""
    max_completion_length: Count | None = None
    """Where the penalty of overlong_buffer is complete; in a run it is sampling.max_completion_length unless set."""
    dynamic_sampling: bool = True
    """Replace prompts whose completions all earn the same reward by others, until the step is full."""

    def __post_init__(self) -> None:
        if self.overlong_buffer and self.max_completion_length and self.overlong_buffer > self.max_completion_length:
            raise ConfigError(
                given=f"overlong_buffer = {self.overlong_buffer}, max_completion_length = {self.max_completion_length}:"
                " even an empty completion would be penalised",
                allowed="an overlong_buffer of at most max_completion_length",
                fix=f"Set overlong_buffer = {max(1, self.max_completion_length // 5)}, the share that the paper uses.",
            )

    def advantages(self, experience: Experience, state: None = None) -> Tensor:
        self.require_group(experience)
        return group_normalized(self._shortened(experience) if self.overlong_buffer else experience)

    def _shortened(self, experience: Experience) -> Experience:
        """The experience with the penalty for length in its rewards."""
        if self.max_completion_length is None:
            raise ConfigError(
                given=f"dapo.overlong_buffer = {self.overlong_buffer} without max_completion_length",
                allowed="the length at which the penalty is complete, an integer >= 1",
                fix="Use DAPO(max_completion_length=...); in a run it follows sampling.max_completion_length.",
            )
        penalty_PG = soft_overlong(experience.lengths_PG, self.max_completion_length, self.overlong_buffer or 0)
        return replace(experience, rewards_PG=experience.rewards_PG + penalty_PG)

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        ratio_BT = token_ratio(outputs.logprobs_BT, batch.old_logprobs_BT)
        loss_BT = clipped_surrogate(ratio_BT, advantages_of(batch), self.clip_low, self.clip_high, self.dual_clip)
        loss_BT = weighted(loss_BT, batch) + kl_term(outputs, batch, self.kl_coef, self.kl_estimator)
        loss = token_mean(loss_BT, batch.completion_mask_BT, totals.tokens)
        return self.finish(loss, outputs, batch, totals, clipped=ratio_BT)

    card: ClassVar[Card] = Card(
        title="DAPO: Decoupled Clip and Dynamic Sampling Policy Optimization",
        paper="DAPO, arXiv:2503.14476",
        summary="GRPO with a wider upper clip, a mean over all tokens, and only prompts that can teach something.",
        choices=row("group_mean group_std token clip loss token_mean auto signal soft_overlong"),
        use_when="Answers are long, rewards can be verified, and many prompts are all right or all wrong: the "
        "step stays full of groups with signal.",
        avoid_when="Sampling is the bottleneck and most prompts have no signal: each of them is sampled in vain.",
        differs=(
            "Paper: the soft penalty is on there (4096 of 20480 tokens). Here overlong_buffer is off until set: it is "
            "a number of tokens, and 4096 is more than most budgets. Its filter of truncated answers is "
            "train.mask_truncated.",
            "The filter looks at rewards before the penalty: a group of wrong answers of different length teaches "
            "nothing. It keeps every group whose rewards differ, as verl; OpenRLHF keeps a group whose mean lies "
            "strictly between 0 and 1, which is a test of variance only for rewards of 0 and 1. TRL has no filter.",
            "Answers beyond max_completion_length have a penalty of 1, as in the paper and TRL; verl and AReaL go on.",
            biased(0.893, 0.732),
        ),
        sources={
            "clip_low": "0.2: the paper",
            "clip_high": "0.28: the paper",
            "top_entropy_quantile": "1: all tokens, as TRL, whose quantile is that of a micro-batch and whose entropy "
            "bonus is over the chosen tokens alone",
            "dual_clip": "off: the paper; verl uses 3",
            "kl_coef": "0: the paper",
            "kl_estimator": "k3: as GRPO",
            "overlong_buffer": "off; the paper uses a fifth of the budget, 4096 of 20480 tokens",
            "max_completion_length": "the generation budget; 20480 in the paper",
            "dynamic_sampling": "on: the paper",
        },
        metrics=clip_formulas() | DUAL_CLIP_METRICS,
    )
