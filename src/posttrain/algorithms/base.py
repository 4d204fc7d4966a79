"""The settings that all policy-gradient algorithms share, and the beginning and end of their losses.

Their `to_batch` calls `advantages`, which turns rewards into `[B, T]` advantages.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, ClassVar, Self

from pydantic import model_validator

from posttrain.algorithms.algorithm import Algorithm, require_whole_update
from posttrain.algorithms.declared import NEEDS, Card, DataKind, Need
from posttrain.algorithms.metrics import SHARED_METRICS, common_metrics, ratio_and_clip_metrics
from posttrain.algorithms.off_policy.apply import anchor_and_weigh, couple_rows
from posttrain.algorithms.off_policy.correction import Correction
from posttrain.algorithms.off_policy.metrics import CORRECTION_METRICS, correction_metrics
from posttrain.algorithms.off_policy.names import CorrectionSetting, correction_of, refuse_a_second_weight
from posttrain.algorithms.settings import Finite, settings
from posttrain.algorithms.shared import entropy_bonus, keep_top_entropy, on_trained_tokens
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals

__all__ = ["NEEDS", "Algorithm", "Card", "DataKind", "Need", "PolicyGradient"]


@settings
class PolicyGradient(Algorithm):
    """Settings that every policy-gradient algorithm has."""

    data_kind: ClassVar[DataKind] = "prompts"
    shared_sources: ClassVar[dict[str, str]] = {
        "entropy_coef": "0: TRL, verl, OpenRLHF",
        "correction": "auto here; TRL corrects whenever another engine samples; verl, OpenRLHF and AReaL on request",
    }
    shared_metrics: ClassVar[dict[str, str]] = SHARED_METRICS | CORRECTION_METRICS

    always_needs: ClassVar[frozenset[Need]] = frozenset()
    reads_token_advantages: ClassVar[bool] = True
    looks_at_lengths: ClassVar[bool] = False
    """For algorithms that read token rewards: true if the reward of a completion depends on its length."""
    kl_in_reward: ClassVar[bool] = False
    """True if kl_coef weighs a KL in the reward, computed before the first update; false if the KL is in the loss."""
    auto_correction: ClassVar[str] = "tis"
    """The correction that `auto` selects if the sampler does not compute with the trainer's own numerics."""

    entropy_coef: Finite = 0.0
    """Weight of the entropy bonus, a mean over the tokens of the step. With 0 its gradient is not computed."""
    correction: CorrectionSetting = "auto"
    """Off-policy correction for the difference between sampler and trainer: a name, or settings such as {action: mask,
    low: 0.5, high: 5}. auto applies a correction if the sampler computes in less than float32 or with weights that are
    not the newest, and none otherwise."""

    @model_validator(mode="after")
    def _weights_once(self) -> Self:
        refuse_a_second_weight(self.off_policy, has_ratio="old" in self.needs)
        return self

    @property
    def kept_share(self) -> float:
        """Share of the tokens of an update, those with the largest entropy, that have a policy term."""
        share = getattr(self, "top_entropy_quantile", None)
        return 1.0 if share is None else share

    @property
    def off_policy(self) -> Correction | None:
        """The record of the correction that applies; None for none and for an undecided auto."""
        return correction_of(self.correction)

    @property
    def correction_name(self) -> str:
        return self.correction if isinstance(self.correction, str) else "by settings"

    def with_decided_correction(self, *, exact: bool) -> Self:
        if self.correction != "auto":
            return self
        return replace(self, correction="none" if exact else self.auto_correction)

    def advantages(self, experience: Experience, state: Any = None) -> Tensor:
        """`[B, T]` advantages, 0 outside the trained tokens, without gradient."""
        raise NotImplementedError

    def to_batch(self, experience: Experience, state: Any = None) -> Batch:
        """Return the inputs of the loss: advantages and, for a critic, returns."""
        if not self.reads_token_rewards:
            experience.refuse_token_rewards()
        return Batch.from_experience(experience, self.advantages(experience, state))

    def prepare(self, batch: Batch) -> Batch:
        return couple_rows(self.off_policy, keep_top_entropy(batch, batch.current_entropy_BT, self.kept_share))

    def start(self, outputs: Outputs | Tensor, batch: Batch) -> tuple[Outputs, Batch]:
        """Begin a loss: return outputs with gradient on trained tokens only, and a batch with off-policy weights.

        A batch that was not prepared is treated as the whole update.
        """
        outputs = on_trained_tokens(outputs, batch)
        batch = keep_top_entropy(batch, outputs.entropy_BT, self.kept_share, required=True)
        return outputs, anchor_and_weigh(self.off_policy, outputs, batch)

    def finish(
        self,
        loss: Tensor,
        outputs: Outputs,
        batch: Batch,
        totals: Totals,
        metrics: Metrics | None = None,
        *,
        clipped: Tensor | None = None,
    ) -> tuple[Tensor, Metrics]:
        """Finish a loss: add the entropy bonus to it and the metrics that all losses share to its own `metrics`.
        `clipped` is the ratio that clip_low, clip_high and dual_clip bound, `[B, T]` or `[B, 1]`."""
        whole = not batch.coupled or batch.num_rows == totals.rows
        if self.off_policy is not None and self.off_policy.couples_rows and whole:
            require_whole_update(batch, totals, f"{self.off_policy.looks_at} in it")
        if self.kept_share < 1 and batch.current_entropy_BT is None:
            require_whole_update(batch, totals, "current_entropy_BT in it")
        loss = loss + entropy_bonus(outputs, batch, totals, self.entropy_coef)
        found = ratio_and_clip_metrics(outputs, batch, clipped, self) | common_metrics(outputs, batch)
        found |= correction_metrics(self.off_policy, outputs, batch)
        return loss, found | (metrics or {})

    @property
    def needs(self) -> frozenset[Need]:
        """The inputs that these settings require. The file of an algorithm declares only its unconditional needs; the
        conditional ones are derived here."""
        has = {field.name: getattr(self, field.name) for field in fields(self)}
        follows: dict[Need, bool] = {
            "old": has.get("clip_low") is not None,
            "reference": has.get("kl_coef", 0) > 0,
            "old_for_advantages": has.get("kl_coef", 0) > 0 and self.kl_in_reward,
            "signal": has.get("dynamic_sampling", False),
            "auxiliary": has.get("ptx_coef", 0) > 0,
        }
        return self.always_needs.union((need for need, asked in follows.items() if asked), self.common_needs())

    def common_needs(self) -> frozenset[Need]:
        """Return the inputs that the settings of this base class require."""
        coupled = self.off_policy is not None and self.off_policy.couples_rows
        follows: dict[Need, bool] = {
            "entropy": self.entropy_coef != 0,
            "current_entropy": self.kept_share < 1,
            "old_for_advantages": coupled and self.anchors_at_trainer,
            "current": coupled and not self.anchors_at_trainer,
        }
        return frozenset(need for need, asked in follows.items() if asked)

    @property
    def anchors_at_trainer(self) -> bool:
        return self.off_policy is None or self.off_policy.anchor == "trainer"
