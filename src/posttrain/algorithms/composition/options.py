"""The building blocks of `policy_gradient`: each choice is a name in a table, with a function and the settings that it
reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from posttrain.algorithms.base import Need
from posttrain.functional.baselines import place_on_last_token, return_to_go
from posttrain.types import Batch, Experience, Outputs, Tensor, Totals

Values = Mapping[str, Any]
"""Parameter -> value, for all that the chosen parts read."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One value of one choice."""

    reads: Mapping[str, Any] = field(default_factory=dict)
    """Parameter -> its default under this option."""
    needs: frozenset[Need] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Scored:
    """From what an advantage is computed."""

    values: Values
    experience: Experience
    """With the shaped rewards."""
    state: Any
    scale_PG: Tensor | float
    """Divides what comes from the rewards."""
    penalty_BT: Tensor | None
    """The KL that is added to the reward of each token."""

    @property
    def rewards_B(self) -> Tensor:
        return self.experience.rewards_PG.reshape(-1)

    @property
    def rewards_BT(self) -> Tensor:
        """The rewards per token: single tokens' rewards, and the completion's reward on its last token."""
        experience = self.experience
        return place_on_last_token(self.rewards_B, experience.scored_mask_BT, experience.token_rewards_BT)

    def per_completion(self, compared_PG: Tensor) -> Tensor:
        """`[B, T]`: one number per completion, scaled, and the return of the penalties from each token on."""
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
    """`[B, T]`, the normalisation by a scale included."""
    returns: Callable[[Scored], Tensor] | None = None
    """`[B, T]` what a critic learns."""
    group: int = 1
    """The fewest completions per prompt."""
    per_token: bool = False
    """Do the tokens of a completion have different advantages?"""
    from_rewards: bool = True
    reads_token_rewards: bool = False
    comparable: Callable[[Experience], Experience] = lambda experience: experience
    """Without the completions that there is nothing to compare with."""


@dataclass(frozen=True, kw_only=True)
class Normalisation(Option):
    scale: Callable[[Values, Experience], Tensor | float] = lambda values, experience: 1.0
    """`[P, 1]`, or a scalar."""
    instead: Callable[[Values, Experience], Tensor] | None = None
    """`[P, G]`: takes the place of the baseline."""
    after: Callable[[Values, Tensor, Tensor], Tensor] = lambda values, advantages_BT, mask_BT: advantages_BT
    group: int = 1


@dataclass(frozen=True, kw_only=True)
class Shaping(Option):
    shaped: Callable[[Values, Experience], Experience] = lambda values, experience: experience
    by_length: bool = False
    """Does it look at how many tokens a completion has?"""


@dataclass(frozen=True, kw_only=True)
class Aggregation(Option):
    reduce: Callable[[Values, Tensor, Batch, Totals], Tensor]
    """(values, `[B, T]` loss, batch, totals) -> scalar."""
    weights: Callable[[Batch], Tensor] | None = None
    """`[B]`: weights of the rows, where they depend on the other rows of the update."""


@dataclass(frozen=True, kw_only=True)
class Filter(Option):
    drop: Callable[[Values, Outputs, Batch], Tensor] | None = None
    """`[B, 1]` bool: completions that leave the policy term."""


@dataclass(frozen=True, kw_only=True)
class KLPlace(Option):
    in_reward: Literal["token", "completion"] | None = None
    in_loss: bool = False
    asks: frozenset[Need] = frozenset()
    """Needs with a coefficient above 0."""
    estimators: tuple[str, ...] = ()
    """Those with the gradient of a KL here (RULE 13)."""
