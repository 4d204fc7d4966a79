"""Off-policy correction: one record for truncated and masked importance sampling, decoupled PPO and their relatives.

    policy term  <-  sg[weight] * policy term         weight from  anchor / sampler,  anchor the centre of the ratio

Sampler and trainer differ by numerics (engine mismatch) and by age (stale weights); both are corrected alike. The KL
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
    """Each named correction is one value of this record (`off_policy.names`)."""

    key: ClassVar[str] = "correction"

    anchor: Literal["trainer", "sampler", "loglinear"] = "trainer"
    """Centre of the ratio: the trainer's own log-probabilities before the update; the sampler's, without a pass of the
    trainer (bypass); or a mixture of sampler and present policy by age, without a pass either (A-3PO)."""
    level: Literal["token", "sequence", "geometric"] = "token"
    """Of the weight anchor / sampler: each token's; the product over the completion; its geometric mean."""
    action: Literal["none", "full", "truncate", "mask", "reject"] = "truncate"
    """none: no weight; full: the weight as it is; truncate: held between low and high; mask: the weight, but 0 where
    the score is not between low and high; reject: 1, but 0 there."""
    score: Literal["weight", "second_moment"] | Score = "weight"
    """What low and high bound under mask and reject: the weight; the ratio of another level; KPop's binary_kl or the
    total_variation of the sampled token against all others, or their mean over the completion; k2 or k3 of the token,
    or their sum, mean or max over the completion; M2PO's mean square of the log-ratio."""
    low: NonNegative | None = None
    """Lower bound; none: no bound."""
    high: Positive | None = None
    """Upper bound; none: no bound."""
    reject: tuple[Rule, ...] = ()
    """Rules beside the weight, all of which have to hold, as {score: sum_k3, high: 10}: a token or a completion that
    breaks one has weight 0."""
    normalize: bool = False
    """Divide the weights by their mean over the update, so that it keeps its size; slightly biased. The mean is over
    tokens with level token, else over completions."""
    rejected_in_denominator: bool = True
    """Rejected tokens keep their place in the denominator, so that the others do not count more (RULE 29)."""

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
        """The log-probabilities from which `prepare` computes weights that depend on other rows."""
        return "old_logprobs_BT" if self.anchor == "trainer" else "current_logprobs_BT"

    @property
    def couples_rows(self) -> bool:
        """Does the weight of a token depend on other rows of the update?"""
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
        "Set high = 2, or action = full for weights without a bound, or action = none for an anchor alone.",
    ),
    (
        lambda c: c.low is not None and c.high is not None and c.low > c.high,
        "low below high",
        "Exchange them; both are absolute, not distances from 1.",
    ),
    (
        lambda c: c.score != "weight" and c.action not in ("mask", "reject"),
        "a score only with action mask or reject",
        "Set action = mask, or leave score out.",
    ),
    (
        lambda c: c.score not in RATIOS and (c.low is not None or c.high is None),
        "high without low: the score is a divergence, never negative",
        "Set high = 0.1, for example, and leave low out.",
    ),
    (
        lambda c: c.score != "weight" and c.level != "token",
        "another score than the weight only with level token",
        "Leave level out, or score.",
    ),
    (
        lambda c: not c.rejected_in_denominator and not c.rejects,
        "rejected_in_denominator = true, as nothing is rejected",
        "Set action = mask or reject, or leave it out.",
    ),
    (
        lambda c: c.normalize and not c.weighs,
        "normalize only with a weight",
        "Set action = truncate, or leave normalize out.",
    ),
    (
        lambda c: c.anchor == "trainer" and not c.weighs,
        "a weight, or another anchor: this corrects nothing",
        "Write correction = none, or set action = truncate.",
    ),
)
"""(what cannot be meant, what can, how to put it right)."""
