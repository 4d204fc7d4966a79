"""Off-policy correction: one record for truncated and masked importance sampling, decoupled PPO and their relatives.

    policy term  <-  sg[weight] * policy term         weight from  anchor / sampler,  anchor the centre of the ratio

Sampler and trainer differ by numerics (engine mismatch) and by age (stale weights); both are corrected alike. The KL
term and the entropy bonus are not weighted. See docs/rules.md, RULE 26-30, and `functional.corrections`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Tag

from posttrain.algorithms.settings import NonNegative, Positive, settings
from posttrain.errors import ConfigError
from posttrain.functional.corrections import (
    LEVELS,
    OVER,
    binary_kl_score,
    estimate_score,
    total_variation_score,
    within,
    within_second_moment,
)
from posttrain.types import Tensor

Score = Literal[
    "token", "sequence", "geometric", "binary_kl", "mean_binary_kl", "total_variation", "mean_total_variation",
    "token_k2", "token_k3", "sum_k2", "sum_k3", "mean_k2", "mean_k3", "max_k2", "max_k3",
]  # fmt: skip


@settings
class Rule:
    """Of several that all have to hold: what a token or a completion must keep to, or be rejected."""

    key: ClassVar[str] = "correction.reject"

    score: Score
    """The ratio of a level; or a divergence: KPop's binary KL, the total variation |p - q| of the sampled token, or
    their mean over the completion; or k2 or k3 per token, or their sum, mean or largest value over the completion."""
    low: NonNegative | None = None
    """Lower bound of a ratio; none: no bound."""
    high: Positive | None = None
    """Upper bound; none: no bound."""

    def __post_init__(self) -> None:
        divergence = self.score not in RATIOS
        if (self.low, self.high) == (None, None) or (divergence and (self.low is not None or self.high is None)):
            raise ConfigError(
                given=f"correction.reject: score = {self.score}, low = {self.low}, high = {self.high}",
                allowed="high without low: the score is a divergence, never negative" if divergence else "low or high",
                fix="Set high = 0.1, for example." if divergence else "Set low = 0.999 and high = 1.001, for example.",
            )


RATIOS = ("weight", "token", "sequence", "geometric")
"""Scores that are ratios; the others are divergences."""


AGAINST_ALL_OTHERS = {"binary_kl": binary_kl_score, "total_variation": total_variation_score}
"""Scores of the sampled token against all others."""


def kept(
    rule: Correction | Rule,
    weight: Tensor,
    delta_BT: Tensor,
    corrected_BT: Tensor,
    sampling_BT: Tensor,
    mask_BT: Tensor,
) -> Tensor:
    """Bool, of the shape of the score: which tokens or completions stay."""
    if rule.score == "second_moment":
        assert rule.high is not None
        return within_second_moment(delta_BT, mask_BT, rule.high)
    if rule.score in LEVELS:
        score = LEVELS[rule.score](delta_BT, mask_BT)
    elif (of_token := rule.score.removeprefix("mean_")) in AGAINST_ALL_OTHERS:
        score = AGAINST_ALL_OTHERS[of_token](corrected_BT, sampling_BT, mask_BT)
        score = score if of_token == rule.score else OVER["mean"](score, mask_BT)
    else:
        score = weight if rule.score == "weight" else estimate_score(rule.score, delta_BT, mask_BT)
    return within(score, rule.low, rule.high)


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


NAMED: dict[str, Correction] = {
    "tis": Correction(high=2),
    "seq_tis": Correction(level="sequence", high=2),
    "mis": Correction(action="mask", high=2),
    "seq_mis": Correction(level="sequence", action="mask", high=2),
    "icepop": Correction(action="mask", low=0.5, high=5),
    "kpop": Correction(action="mask", score="binary_kl", high=0.1),
    "geo_rs": Correction(level="geometric", action="reject", low=0.999, high=1.001),
    "geo_rs_tis": Correction(high=2, reject=(Rule(score="geometric", low=0.999, high=1.001),)),
    "seq_mask_tis": Correction(action="mask", score="geometric", low=0.5, high=5),
    "m2po": Correction(action="mask", score="second_moment", high=0.04),
    "decoupled": Correction(action="mask", high=5),
    "a3po": Correction(anchor="loglinear", action="mask", high=5),
    "bypass": Correction(anchor="sampler", action="none"),
    "trl": Correction(level="sequence", action="mask", high=3),
}
"""What each name stands for."""

CorrectionName = Literal[
    "auto", "none", "tis", "seq_tis", "mis", "seq_mis", "icepop", "kpop", "geo_rs", "geo_rs_tis", "seq_mask_tis",
    "m2po", "decoupled", "a3po", "bypass", "trl",
]  # fmt: skip


def _built(given: Any) -> Any:
    return Correction(**given) if isinstance(given, Mapping) else given


CorrectionSetting = Annotated[
    Annotated[CorrectionName, Tag("<name>")] | Annotated[Correction, BeforeValidator(_built), Tag("<record>")],
    Discriminator(lambda given: "<name>" if isinstance(given, str) else "<record>"),
]
"""A name, or a record of one's own."""


def correction_of(setting: CorrectionName | Correction) -> Correction | None:
    """The record behind a setting. `auto` is none here: a run decides it, by how its sampler computes."""
    return setting if isinstance(setting, Correction) else NAMED.get(setting)


def refuse_a_second_weight(correction: Correction | None, *, has_ratio: bool) -> None:
    """RULE 27: a ratio around the sampler holds the weight already. An anchor that nothing reads is a mistake, too."""
    if correction is None:
        return
    if has_ratio and correction.anchor == "sampler" and correction.action not in ("none", "reject"):
        raise ConfigError(
            given=f"correction: anchor = sampler, action = {correction.action}, with a ratio",
            allowed="action = none or reject with anchor = sampler, or a weight with anchor = trainer",
            fix="Write correction = bypass, or correction = tis; both would count trainer / sampler twice.",
        )
    if not has_ratio and not correction.weighs:
        raise ConfigError(
            given=f"correction: anchor = {correction.anchor}, action = none, without a ratio",
            allowed="a weight",
            fix="Write correction = {anchor: sampler, high: 2}, a weight of policy / sampler, or correction = tis.",
        )
