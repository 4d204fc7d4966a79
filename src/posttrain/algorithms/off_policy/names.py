"""The corrections of the field by name, and the setting `correction` that takes a name or a record of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Tag

from posttrain.algorithms.off_policy.correction import Correction, Rule
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
"""What each name stands for."""

ABOUT: dict[str, str] = {
    "tis": "truncated importance sampling (Your Efficient RL Framework Secretly Brings You Off-Policy RL, 2025)",
    "seq_tis": "the same with the product over the completion, as in verl's notes on rollout correction",
    "mis": "masked importance sampling (When Speed Kills Stability, 2025)",
    "seq_mis": "the same with the product over the completion",
    "icepop": "IcePop (Ring-1T, arXiv:2510.18855): a two-sided mask of tokens",
    "kpop": "KPop (a note of the Ring team, 2026): tokens whose probability moved by a binary KL above high are masked",
    "geo_rs": "rejection of completions by their geometric mean, with verl's bounds",
    "geo_rs_tis": "both at once, as verl has them: truncated weights per token, and completions rejected by their "
    "geometric mean",
    "seq_mask_tis": "OpenRLHF's level = seq: weights per token, completions masked by their geometric mean",
    "m2po": "M2PO (arXiv:2510.01161): the tokens of largest log-ratio are masked until its mean square is below high",
    "decoupled": "AReaL's decoupled PPO (arXiv:2505.24298), its weight masked above 5",
    "a3po": "A-3PO (arXiv:2512.06547): the same, anchored by the age of the token, without a pass",
    "bypass": "the ratio is centred at the sampler; no weight",
    "trl": "TRL's default beside an inference server: the product over the completion, masked above 3",
}
"""What each name is, and where it comes from."""

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
