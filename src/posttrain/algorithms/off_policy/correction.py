"""Off-policy correction: one record for truncated and masked importance sampling, decoupled PPO and their variants.

    policy term  <-  sg[weight] * policy term         weight from  anchor / sampler,  anchor the centre of the ratio

Sampler and trainer differ by numerics (engine mismatch) and by age (stale weights). One correction covers both. The KL
term and the entropy bonus are not weighted. See docs/rules.md, RULE 26-30, and `functional.corrections`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, ClassVar, Literal

from posttrain.algorithms.off_policy.rules import RATIOS, Rule, Score
from posttrain.algorithms.settings import NonNegative, Positive, settings
from posttrain.errors import ConfigError


@settings
class Correction:
    """Settings of an off-policy correction. Each named correction is a value of this record (`off_policy.names`)."""

    key: ClassVar[str] = "correction"

    anchor: Literal["trainer", "sampler", "loglinear"] = "trainer"
    """Centre of the ratio. trainer: the trainer's own log-probabilities before the update; sampler: the sampler's,
    without a forward pass of the trainer (bypass); loglinear: a mixture of sampler and current policy by age, also
    without a pass (A-3PO)."""
    level: Literal["token", "sequence", "geometric"] = "token"
    """Level of the weight anchor / sampler. token: each token's; sequence: the product over the completion; geometric:
    the geometric mean over the completion."""
    action: Literal["none", "full", "truncate", "mask", "reject"] = "truncate"
    """Use of the weight. none: no weight; full: the weight without bounds; truncate: the weight, clamped to low and
    high; mask: the weight, or 0 if the score is outside low and high; reject: 1, or 0 if the score is outside them."""
    score: Literal["weight", "second_moment"] | Score = "weight"
    """Quantity that low and high bound under mask and reject: the weight; the ratio of another level; KPop's binary_kl
    or the total_variation of the sampled token against all others, or their mean over the completion; k2 or k3 of the
    token, or their sum, mean or max over the completion; M2PO's mean square of the log-ratio (second_moment)."""
    low: NonNegative | None = None
    """Lower bound; none: no bound."""
    high: Positive | None = None
    """Upper bound; none: no bound."""
    reject: tuple[Rule, ...] = ()
    """Additional rules such as {score: sum_k3, high: 10}. All of them must hold: a token or a completion that breaks
    one has weight 0."""
    normalize: bool = False
    """If true, the weights are divided by their mean over the update, so that the update keeps its size. This is
    slightly biased. The mean is over tokens with level token, and over completions otherwise."""
    rejected_in_denominator: bool = True
    """If true, rejected tokens stay in the denominator, so that the other tokens do not count more (RULE 29)."""

    def __post_init__(self) -> None:
        for fault, allowed, fix in FAULTS:
            if fault(self):
                given = {n: v for n, v in vars(self).items() if v != DEFAULTS[n] or n in ("action", "low", "high")}
                shown = ", ".join(f"{name} = {value}" for name, value in given.items())
                raise ConfigError(given=f"correction: {shown}", allowed=allowed, fix=fix)

    @property
    def weighs(self) -> bool:
        return self.action != "none" or bool(self.reject)

    @property
    def rejects(self) -> bool:
        return self.action in ("mask", "reject") or bool(self.reject)

    @property
    def looks_at(self) -> str:
        """Name of the log-probabilities from which `prepare` computes weights that depend on other rows."""
        return "old_logprobs_BT" if self.anchor == "trainer" else "current_logprobs_BT"

    @property
    def couples_rows(self) -> bool:
        """True if the weight of a token depends on other rows of the update."""
        return self.normalize or self.score == "second_moment" or not self.rejected_in_denominator


DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Correction)}
FAULTS: tuple[tuple[Callable[[Correction], bool], str, str], ...] = (
    (
        lambda c: c.action in ("none", "full") and (c.low, c.high, c.score) != (None, None, "weight"),
        "low, high and score only with action truncate, mask or reject",
        "Set action = truncate, or leave them out.",
    ),
    (
        lambda c: c.action not in ("none", "full") and (c.low, c.high) == (None, None),
        "low, high or both",
        "Set high = 2, or action = full for weights without a bound, or action = none to change only the anchor.",
    ),
    (
        lambda c: c.low is not None and c.high is not None and c.low > c.high,
        "low below high",
        "Swap them. Both are absolute values, not distances from 1.",
    ),
    (
        lambda c: c.score != "weight" and c.action not in ("mask", "reject"),
        "a score only with action mask or reject",
        "Set action = mask, or leave score out.",
    ),
    (
        lambda c: c.score not in RATIOS and (c.low is not None or c.high is None),
        "high without low: the score is a divergence, which is never negative",
        "Set high = 0.1, for example, and leave low out.",
    ),
    (
        lambda c: c.score != "weight" and c.level != "token",
        "a score other than the weight only with level token",
        "Leave level out, or leave score out.",
    ),
    (
        lambda c: not c.rejected_in_denominator and not c.rejects,
        "rejected_in_denominator = true, because nothing is rejected",
        "Set action = mask or reject, or leave rejected_in_denominator out.",
    ),
    (
        lambda c: c.normalize and not c.weighs,
        "normalize only with a weight",
        "Set action = truncate, or leave normalize out.",
    ),
    (
        lambda c: c.anchor == "trainer" and not c.weighs,
        "a weight, or another anchor: these settings correct nothing",
        "Set correction = none, or action = truncate.",
    ),
)
"""Each fault as (test, allowed, fix)."""
