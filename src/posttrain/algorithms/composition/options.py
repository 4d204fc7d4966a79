"""The building blocks of `policy_gradient`: each option has a name in a table, a function and the parameters that it
reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from posttrain.algorithms.base import Need
from posttrain.functional.baselines import place_on_last_token, return_to_go
from posttrain.types import Batch, Experience, Outputs, Tensor, Totals

Values = Mapping[str, Any]
"""Parameter -> value, for all parameters that the chosen options read."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option of one choice."""

    reads: Mapping[str, Any] = field(default_factory=dict)
    """Parameter -> default under this option."""
    needs: frozenset[Need] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The inputs of the advantages."""

    values: Values
    experience: Experience
    """The experience with shaped rewards."""
    state: Any
    scale_PG: Tensor | float
    """Divisor of the part of the advantages that comes from the rewards."""
    penalty_BT: Tensor | None
    """KL term, -kl_coef * KL, that is added to the reward of each token."""

    @property
    def rewards_B(self) -> Tensor:
        return self.experience.rewards_PG.reshape(-1)

    @property
    def rewards_BT(self) -> Tensor:
        """Rewards per token: the token rewards, plus the completion's reward on its last token."""
        experience = self.experience
        return place_on_last_token(self.rewards_B, experience.scored_mask_BT, experience.token_rewards_BT)

    def per_completion(self, compared_PG: Tensor) -> Tensor:
        """`[B, T]`: the scaled value of the completion, plus the discounted penalties from each token on."""
        scaled_PG = compared_PG if isinstance(self.scale_PG, float) else compared_PG / self.scale_PG
        return self.with_penalties(self.experience.broadcast(scaled_PG))

    def with_penalties(self, advantages_BT: Tensor) -> Tensor:
        if self.penalty_BT is None:
            return advantages_BT
        mask_BT = self.experience.scored_mask_BT
        return advantages_BT + return_to_go(self.penalty_BT, mask_BT, self.values["gamma"])


@dataclass(frozen=True, kw_only=True)
class Baseline(Option):
    advantages: Callable[[Scored], Tensor]
    """`[B, T]` advantages, including the division by a scale."""
    returns: Callable[[Scored], Tensor] | None = None
    """`[B, T]` regression targets of a critic."""
    group: int = 1
    """Smallest number of completions per prompt."""
    per_token: bool = False
    """True if the tokens of a completion may have different advantages."""
    from_rewards: bool = True
    reads_token_rewards: bool = False
    comparable: Callable[[Experience], Experience] = lambda experience: experience
    """Function that marks completions without a baseline as unscored."""


@dataclass(frozen=True, kw_only=True)
class Normalisation(Option):
    scale: Callable[[Values, Experience], Tensor | float] = lambda values, experience: 1.0
    """`[P, 1]` or scalar divisor."""
    instead: Callable[[Values, Experience], Tensor] | None = None
    """`[P, G]` advantages that replace those of the baseline."""
    after: Callable[[Values, Tensor, Tensor], Tensor] = lambda values, advantages_BT, mask_BT: advantages_BT
    group: int = 1


@dataclass(frozen=True, kw_only=True)
class Shaping(Option):
    shaped: Callable[[Values, Experience], Experience] = lambda values, experience: experience
    by_length: bool = False
    """True if the shaped reward depends on the number of tokens of a completion."""


@dataclass(frozen=True, kw_only=True)
class Aggregation(Option):
    reduce: Callable[[Values, Tensor, Batch, Totals], Tensor]
    """Function (values, `[B, T]` loss, batch, totals) -> scalar loss."""
    weights: Callable[[Batch], Tensor] | None = None
    """`[B]` weights of the rows, if they depend on other rows of the update."""


@dataclass(frozen=True, kw_only=True)
class Filter(Option):
    drop: Callable[[Values, Outputs, Batch], Tensor] | None = None
    """`[B, 1]` bool: completions that are dropped from the policy term."""


@dataclass(frozen=True, kw_only=True)
class KLPlace(Option):
    in_reward: Literal["token", "completion"] | None = None
    in_loss: bool = False
    asks: frozenset[Need] = frozenset()
    """Needs if kl_coef > 0."""
    estimators: tuple[str, ...] = ()
    """Estimators that have the gradient of a KL in this place (RULE 13)."""
