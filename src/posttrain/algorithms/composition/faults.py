"""Combinations of `policy_gradient` that are refused, and the options that read each parameter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

from posttrain.algorithms.composition.parameters import Parameters
from posttrain.algorithms.composition.tables import TABLES, Chosen
from posttrain.errors import ConfigError

if TYPE_CHECKING:
    from posttrain.algorithms.policy_gradient import ComposedPolicyGradient


FOLLOWS_THE_RUN = "max_completion_length"
"""Parameter that a run always sets, even if no chosen option reads it."""


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
        "a baseline of the group with a scale of the group: other advantages are not 0 if the scale is 0 (RULE 11)",
        "Set normalisation = none or batch_std, or baseline = group_mean.",
    ),
    Fault(
        lambda a, c: a.ratio not in c.trust_region.ratios,
        "ratio trust_region",
        "a ratio that the trust region supports",
        "Set ratio = {c.trust_region.ratios[0]}.",
    ),
    Fault(
        lambda a, c: c.kl.estimators and c.values(a)["kl_estimator"] not in c.kl.estimators,
        "kl kl_estimator",
        "an estimator that has the gradient of a KL in this place",
        "Set kl_estimator = {c.kl.estimators[0]}: in the loss the expected gradient of k1 is zero, and in the reward "
        "there is no gradient to correct (RULE 13).",
    ),
    Fault(
        lambda a, c: c.ratio.per_completion and (c.baseline.per_token or c.kl.in_reward == "token"),
        "ratio baseline kl",
        "one advantage per completion, or a ratio per token",
        "Set ratio = sequence_token, or kl = reward_sequence: a ratio per completion would average token advantages.",
    ),
    Fault(
        lambda a, c: (
            c.normalisation.instead is not None
            and (a.baseline != "group_mean" or a.shaping != "none" or c.kl.in_reward == "completion")
        ),
        "normalisation baseline shaping kl",
        "baseline = group_mean, shaping = none and no KL in the reward: each reward is normalised separately",
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
        "shaping = none, and kl = none or loss, because a teacher gives no rewards",
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
        "one absolute bound, max_ratio, or relative bounds, clip_low and clip_high",
        "Leave max_ratio out, or leave clip_low and clip_high out; set to null what a preset sets.",
    ),
)


def refuse(algorithm: ComposedPolicyGradient, chosen: Chosen) -> None:
    """Raise ConfigError for a combination in `FAULTS`, and for a parameter that no chosen option reads."""
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
                given=f"policy_gradient.{field.name} = {value}, which none of the chosen options reads",
                allowed=", ".join(read),
                fix=f"Remove it, or set it to null if a preset sets it; or choose an option that reads it: "
                f"{readers(field.name)}.",
            )


def readers(parameter: str) -> str:
    """Return the options that read a parameter, as text."""
    return " or ".join(
        f"{choice} = {name}"
        for choice, table in TABLES.items()
        for name, option in table.items()
        if parameter in option.reads
    )
