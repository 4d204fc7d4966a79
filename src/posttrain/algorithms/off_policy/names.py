"""Corrections by the names that their papers and verl use, and the values of the setting `correction`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Tag

from posttrain.algorithms.off_policy.correction import Correction
from posttrain.algorithms.off_policy.rules import Rule
from posttrain.errors import ConfigError

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
"""Name -> the correction that it stands for."""

CorrectionName = Literal[
    "auto", "none", "tis", "seq_tis", "mis", "seq_mis", "icepop", "kpop", "geo_rs", "geo_rs_tis", "seq_mask_tis",
    "m2po", "decoupled", "a3po", "bypass", "trl",
]  # fmt: skip


def _built(given: Any) -> Any:
    return Correction(**given) if isinstance(given, Mapping) else given


CorrectionSetting = Annotated[
    Annotated[CorrectionName, Tag("<name>")] | Annotated[Correction, BeforeValidator(_built), Tag("<record>")],
    Discriminator(lambda given: "<record>" if isinstance(given, Mapping | Correction) else "<name>"),
]
"""A name, or the settings of a `Correction`."""


def correction_of(setting: CorrectionName | Correction) -> Correction | None:
    """Return the record that a setting stands for. None for `auto`: the run decides it from the sampler's numerics."""
    return setting if isinstance(setting, Correction) else NAMED.get(setting)


def refuse_a_second_weight(correction: Correction | None, *, has_ratio: bool) -> None:
    """Refuse a weight on a ratio that is anchored at the sampler, because the ratio already contains it (RULE 27).
    Refuse an anchor that nothing reads."""
    if correction is None:
        return
    if has_ratio and correction.anchor == "sampler" and correction.action not in ("none", "reject"):
        raise ConfigError(
            given=f"correction: anchor = sampler, action = {correction.action}, with a ratio",
            allowed="action = none or reject with anchor = sampler, or a weight with anchor = trainer",
            fix="Set correction = bypass or correction = tis. A weight and this ratio count trainer / sampler twice.",
        )
    if not has_ratio and not correction.weighs:
        raise ConfigError(
            given=f"correction: anchor = {correction.anchor}, action = none, without a ratio",
            allowed="a weight",
            fix="Set correction = {anchor: sampler, high: 2}, a weight of policy / sampler, or correction = tis.",
        )
