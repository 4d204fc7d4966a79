"""The eight tables of `policy_gradient`, and one option of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from posttrain.algorithms.composition.baselines import BASELINES, NORMALISATIONS, SHAPINGS
from posttrain.algorithms.composition.losses import AGGREGATIONS, FILTERS, KL_PLACES
from posttrain.algorithms.composition.options import (
    Aggregation,
    Baseline,
    Filter,
    KLPlace,
    Normalisation,
    Option,
    Scored,
    Shaping,
    Values,
)
from posttrain.algorithms.composition.parameters import Parameters
from posttrain.algorithms.composition.trust_regions import RATIOS, TRUST_REGIONS, Ratio, TrustRegion
from posttrain.algorithms.critic import kl_before_update
from posttrain.errors import ConfigError
from posttrain.types import Batch, Experience, Tensor

if TYPE_CHECKING:
    from posttrain.algorithms.policy_gradient import ComposedPolicyGradient

TABLES: Mapping[str, Mapping[str, Option]] = {
    "baseline": BASELINES,
    "normalisation": NORMALISATIONS,
    "ratio": RATIOS,
    "trust_region": TRUST_REGIONS,
    "kl": KL_PLACES,
    "aggregation": AGGREGATIONS,
    "filter": FILTERS,
    "shaping": SHAPINGS,
}


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """One option of each table."""

    baseline: Baseline
    normalisation: Normalisation
    ratio: Ratio
    trust_region: TrustRegion
    kl: KLPlace
    aggregation: Aggregation
    filter: Filter
    shaping: Shaping

    @staticmethod
    def of(names: Any) -> Chosen:
        return Chosen(**{choice: table[getattr(names, choice)] for choice, table in TABLES.items()})  # type: ignore[arg-type]

    @property
    def options(self) -> list[Option]:
        return [getattr(self, choice) for choice in TABLES]

    def values(self, given: Parameters) -> Values:
        """Parameter -> what was given for it, or the default of the option that reads it."""
        defaults = {name: default for option in self.options for name, default in option.reads.items()}
        return {n: default if getattr(given, n) is None else getattr(given, n) for n, default in defaults.items()}


def scored_by(chosen: Chosen, p: Values, experience: Experience, state: Any) -> Scored:
    """The rewards after shaping and, where it belongs to the reward, with the KL."""
    shaped = chosen.shaping.shaped(p, chosen.baseline.comparable(experience))
    penalty_BT = None
    if chosen.kl.in_reward is not None and p["kl_coef"]:
        penalty_BT = -p["kl_coef"] * kl_before_update(Batch.from_experience(shaped), p["kl_estimator"])
    if penalty_BT is not None and chosen.kl.in_reward == "completion":
        rewards_PG = shaped.rewards_PG + penalty_BT.sum(dim=-1).reshape(shaped.rewards_PG.shape)
        shaped, penalty_BT = replace(shaped, rewards_PG=rewards_PG), None
    scale_PG = chosen.normalisation.scale(p, shaped)
    return Scored(values=p, experience=shaped, state=state, scale_PG=scale_PG, penalty_BT=penalty_BT)


def advantages_of(chosen: Chosen, scored: Scored) -> Tensor:
    """`[B, T]` baseline, then normalisation."""
    experience, instead = scored.experience, chosen.normalisation.instead
    if instead is not None:
        return scored.with_penalties(experience.broadcast(instead(scored.values, experience)))
    advantages_BT = chosen.baseline.advantages(scored)
    return chosen.normalisation.after(scored.values, advantages_BT, experience.scored_mask_BT)


FOLLOWS_THE_RUN = "max_completion_length"
"""A run fills it in whether or not it is read."""


class Fault(NamedTuple):
    """A combination that is refused."""

    found: Callable[[ComposedPolicyGradient, Chosen], Any]
    names: str
    """The choices and parameters that the message shows."""
    allowed: str
    fix: str


FAULTS = (
    Fault(
        lambda a, c: a.normalisation in ("group_std", "mean_reward") and c.baseline.group == 1,
        "baseline normalisation",
        "a baseline of the group with a scale of the group: other advantages are not 0 where that is 0 (RULE 11)",
        "Set normalisation = none or batch_std, or baseline = group_mean.",
    ),
    Fault(
        lambda a, c: a.ratio not in c.trust_region.ratios,
        "ratio trust_region",
        "a ratio that the trust region is made for",
        "Set ratio = {c.trust_region.ratios[0]}.",
    ),
    Fault(
        lambda a, c: c.kl.estimators and c.values(a)["kl_estimator"] not in c.kl.estimators,
        "kl kl_estimator",
        "an estimator whose gradient here is that of a KL",
        "Set kl_estimator = {c.kl.estimators[0]}: in the loss the expected gradient of k1 is zero, and in the reward "
        "there is none to correct (RULE 13).",
    ),
    Fault(
        lambda a, c: c.ratio.per_completion and (c.baseline.per_token or c.kl.in_reward == "token"),
        "ratio baseline kl",
        "one advantage per completion, or a ratio per token",
        "Set ratio = sequence_token, or kl = reward_sequence: one ratio would average what is said of each token.",
    ),
    Fault(
        lambda a, c: (
            c.normalisation.instead is not None
            and (a.baseline != "group_mean" or a.shaping != "none" or c.kl.in_reward == "completion")
        ),
        "normalisation baseline shaping kl",
        "baseline = group_mean, shaping = none and the KL elsewhere: each reward is normalised by itself",
        "Set baseline = group_mean, shaping = none and kl = loss, or normalisation = group_std.",
    ),
    Fault(
        lambda a, c: (
            (c.baseline.per_token or a.baseline == "pass_at_k") and a.normalisation not in ("none", "whiten_tokens")
        ),
        "baseline normalisation",
        "none or whiten_tokens: these advantages are not differences of rewards",
        "Set normalisation = none.",
    ),
    Fault(
        lambda a, c: not c.baseline.from_rewards and (a.shaping != "none" or c.kl.in_reward is not None),
        "baseline shaping kl",
        "shaping = none, and kl = none or loss: a teacher gives no rewards",
        "Set shaping = none and kl = none.",
    ),
    Fault(
        lambda a, c: a.baseline in ("critic", "pass_at_k") and c.kl.in_reward == "completion",
        "baseline kl",
        "kl = none, loss or reward",
        "Set kl = loss.",
    ),
    Fault(
        lambda a, c: (
            a.trust_region == "weight_clip" and a.max_ratio is not None and (a.clip_low, a.clip_high) != (None, None)
        ),
        "max_ratio clip_low clip_high",
        "one absolute bound, max_ratio, or relative ones, clip_low and clip_high",
        "Leave max_ratio out, or the others.",
    ),
)


def refuse(algorithm: ComposedPolicyGradient, chosen: Chosen) -> None:
    """Raise ConfigError for what cannot be meant, and for a parameter that nothing reads."""
    for fault in FAULTS:
        if fault.found(algorithm, chosen):
            given = ", ".join(f"{name} = {getattr(algorithm, name)}" for name in fault.names.split())
            fix = fault.fix.format(c=chosen)
            raise ConfigError(given=f"policy_gradient: {given}", allowed=fault.allowed, fix=fix)
    read = chosen.values(algorithm)
    for field in fields(Parameters):
        value, own = getattr(algorithm, field.name), field.name in Parameters.__annotations__
        if own and value is not None and field.name not in (*read, FOLLOWS_THE_RUN):
            raise ConfigError(
                given=f"policy_gradient.{field.name} = {value}, which none of the chosen parts reads",
                allowed=", ".join(read),
                fix=f"Remove it, or make the choice that reads it: {readers(field.name)}.",
            )


def readers(parameter: str) -> str:
    """The options that read a parameter."""
    return " or ".join(
        f"{choice} = {name}"
        for choice, table in TABLES.items()
        for name, option in table.items()
        if parameter in option.reads
    )
