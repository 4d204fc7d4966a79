"""The eight tables of `policy_gradient`, and the advantages for one choice from each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from posttrain.algorithms.composition.baselines import BASELINES
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
from posttrain.algorithms.composition.ratios import RATIOS, Ratio, TrustRegion
from posttrain.algorithms.composition.shaping import NORMALISATIONS, SHAPINGS
from posttrain.algorithms.composition.trust_regions import TRUST_REGIONS
from posttrain.algorithms.critic import kl_before_update
from posttrain.types import Batch, Experience, Tensor

if TYPE_CHECKING:
    pass


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
    """One chosen option from each table."""

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

    @property
    def reads_token_advantages(self) -> bool:
        """True if the tokens of a completion may have different advantages."""
        by_ratio = self.trust_region.advantage_of == "ratio" and not self.ratio.per_completion
        return self.filter.drop is None and (by_ratio or self.trust_region.advantage_of == "token")

    def values(self, given: Parameters) -> Values:
        """Return parameter -> the given value, or the default of the option that reads it."""
        defaults = {name: default for option in self.options for name, default in option.reads.items()}
        return {n: default if getattr(given, n) is None else getattr(given, n) for n, default in defaults.items()}


def scored_by(chosen: Chosen, p: Values, experience: Experience, state: Any) -> Scored:
    """Return the rewards after shaping, with the KL if it is part of the reward."""
    if chosen.baseline.from_rewards:
        experience.require_rewards()
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
    """`[B, T]` advantages: the baseline is subtracted, then they are normalised."""
    experience, instead = scored.experience, chosen.normalisation.instead
    if instead is not None:
        return scored.with_penalties(experience.broadcast(instead(scored.values, experience)))
    advantages_BT = chosen.baseline.advantages(scored)
    return chosen.normalisation.after(scored.values, advantages_BT, experience.scored_mask_BT)
