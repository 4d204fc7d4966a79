"""Credit for turns: each turn of a trajectory is one action, and what this turn and later ones earn is its return.

    r_k = rewards of the tokens of turn k, that of the whole completion beside those of its last turn
    G_k = r_k + discount * G_k+1

An algorithm needs to know nothing of turns: it is shown its experience in other words.

**Turns as tokens**, for algorithms that read rewards of tokens: a turn is one token, with the sum of its
log-probabilities and the value before its first token. Returns, lambda-returns and whitening then go from turn to turn,
as in turn-PPO (arXiv:2512.17008):

    delta_k = r_k + discount V_k+1 - V_k        A_k = delta_k + discount gae_lambda A_k+1        R_k = A_k + V_k

**Turns as completions**, for those that compare the completions of a prompt: turn k of each trajectory is a completion
with the reward G_k, and those that have a turn k are a group: the normalised returns of Group Turn Policy Optimization
(GTPO, arXiv:2511.14846). A turn that no other trajectory of the group has is compared with their last turns: any
baseline that depends on the others alone leaves the gradient of a leave-one-out estimator unbiased (Williams 1992).

What comes of it stands on each token of the turn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from posttrain.algorithms.algorithm import Algorithm
from posttrain.algorithms.base import PolicyGradient
from posttrain.errors import ConfigError
from posttrain.functional.masks import masked
from posttrain.functional.turns import (
    discounted_to_go,
    number_of_turns,
    on_tokens,
    sum_over_turns,
    turn_begins,
    turns_of,
)
from posttrain.types import Batch, Experience, Tensor


class Credit(Protocol):
    """Who earned the rewards of a completion."""

    def to_batch(self, algorithm: Algorithm, experience: Experience, state: Any = None) -> Batch:
        """`algorithm.to_batch` under this view."""
        ...


def credit_of(name: str, discount: float = 1.0) -> Credit:
    """By the name of `environment.credit`; rewards of tokens are part of the experience, which is then read as it
    is."""
    return ByTurn(discount=discount) if name == "turn" else Whole()


@dataclass(frozen=True, kw_only=True)
class Whole:
    """Implements `Credit`: what the algorithm makes of the experience as it is."""

    def to_batch(self, algorithm: Algorithm, experience: Experience, state: Any = None) -> Batch:
        return algorithm.to_batch(experience, state)


@dataclass(frozen=True, kw_only=True)
class ByTurn:
    """Implements `Credit`."""

    discount: float = 1.0
    """Of what a later turn earns, for each turn in between."""

    def to_batch(self, algorithm: Algorithm, experience: Experience, state: Any = None) -> Batch:
        """What the loss reads. ConfigError for an algorithm that cannot credit turns."""
        if (error := no_turns_for(algorithm)) is not None:
            raise error
        turns = Turns.of(experience, self.discount)
        batch = Batch.from_experience(experience)
        if not algorithm.reads_token_rewards:
            return turns.of_completions(batch, algorithm.to_batch(turns.as_completions(), state))
        if self.discount != 1:
            algorithm = replace(algorithm, gamma=self.discount)  # pyright: ignore[reportCallIssue]
        return turns.of_tokens(batch, algorithm.to_batch(turns.as_tokens(), state))


@dataclass(frozen=True, kw_only=True)
class Turns:
    """Experience, and where its turns are. S: turns of the longest trajectory, at least 1."""

    experience: Experience
    discount: float
    turns_BT: Tensor
    count: int

    @staticmethod
    def of(experience: Experience, discount: float = 1.0) -> Turns:
        turns_BT = turns_of(experience.completion_mask_BT)
        count = max(1, int(number_of_turns(turns_BT).max())) if len(turns_BT) else 1
        return Turns(experience=experience, discount=discount, turns_BT=turns_BT, count=count)

    # --- turns as tokens ---------------------------------------------------------------------------------------------

    def as_tokens(self) -> Experience:
        """Each turn as one token: `[B, S]` in place of `[B, T]`."""
        x, begins_BT = self.experience, turn_begins(self.experience.completion_mask_BT)
        return replace(
            x,
            completion_mask_BT=self._sums(x.completion_mask_BT.int()) > 0,
            token_rewards_BT=self._of(x.token_rewards_BT),
            old_logprobs_BT=self._of(x.old_logprobs_BT),
            sampling_logprobs_BT=self._of(x.sampling_logprobs_BT),
            ref_logprobs_BT=self._of(x.ref_logprobs_BT),
            values_BT=None if x.values_BT is None else self._sums(masked(x.values_BT, begins_BT)),
            teacher_logprobs_BT=None,
            squared_probs_BT=None,
            versions_BT=None,
            tokens=None,
        )

    def of_tokens(self, batch: Batch, found: Batch) -> Batch:
        """The batch with what was found of its turns as tokens."""
        assert found.advantages_BT is not None
        returns_BT = None if found.returns_BT is None else on_tokens(found.returns_BT, self.turns_BT)
        trained_BT = on_tokens(found.completion_mask_BT, self.turns_BT)
        return replace(
            batch,
            completion_mask_BT=batch.completion_mask_BT & trained_BT,
            advantages_BT=on_tokens(found.advantages_BT, self.turns_BT),
            returns_BT=returns_BT,
        )

    # --- turns as completions ----------------------------------------------------------------------------------------

    def as_completions(self) -> Experience:
        """Turn k of prompt p as the group k * P + p."""
        x, returns_SPG, has_SPG = self.experience, self.returns_SPG, self.has_SPG
        scored_SPG = x.scored_PG & has_SPG
        alone_SP1 = scored_SPG.sum(dim=-1, keepdim=True) == 1
        mask_SBT = self.turns_BT == torch.arange(self.count, device=self.turns_BT.device)[:, None, None]
        return Experience.from_rewards(
            torch.where(has_SPG, returns_SPG, self._of_last_turn).flatten(0, 1),
            completion_mask_BT=mask_SBT.flatten(0, 1),
            scored_PG=(x.scored_PG & (has_SPG | alone_SP1)).flatten(0, 1),
            truncated_PG=x.truncated_PG.repeat(self.count, 1),
            version=x.version,
        )

    def of_completions(self, batch: Batch, found: Batch) -> Batch:
        """The batch with what was found of its turns as completions."""
        assert found.advantages_BT is not None
        shape = self.count, *self.turns_BT.shape
        return replace(
            batch,
            completion_mask_BT=found.completion_mask_BT.reshape(shape).any(dim=0),
            advantages_BT=found.advantages_BT.reshape(shape).sum(dim=0),
        )

    @property
    def returns_SPG(self) -> Tensor:
        """G_k of each trajectory; meaningless for turns that it does not have."""
        return self._by_group(discounted_to_go(self._rewards_BS, self.discount))

    @property
    def has_SPG(self) -> Tensor:
        """Does the trajectory have a turn k? The first one in any case."""
        turns = torch.arange(self.count, device=self.turns_BT.device)
        return self._by_group(turns <= self._last_B1)

    @property
    def _of_last_turn(self) -> Tensor:
        """`[P, G]` what the last turn of each trajectory has earned."""
        rewards_BS = self._rewards_BS
        return rewards_BS.gather(1, self._last_B1).reshape(self.experience.rewards_PG.shape)

    @property
    def _last_B1(self) -> Tensor:
        """The last turn of each trajectory; the first of one in which nothing was drawn."""
        return (number_of_turns(self.turns_BT) - 1).clamp(min=0)[:, None]

    @property
    def _rewards_BS(self) -> Tensor:
        x = self.experience
        whole_B1 = x.rewards_PG.reshape(-1, 1)
        zeros_BS = whole_B1.new_zeros(len(whole_B1), self.count)
        if x.token_rewards_BT is None:
            return zeros_BS.scatter(1, self._last_B1, whole_B1)
        return self._sums(x.token_rewards_BT).to(whole_B1.dtype).scatter_add(1, self._last_B1, whole_B1)

    def _by_group(self, x_BS: Tensor) -> Tensor:
        """`[S, P, G]` of `[B, S]`."""
        return x_BS.T.reshape(self.count, *self.experience.rewards_PG.shape)

    def _sums(self, x_BT: Tensor) -> Tensor:
        return sum_over_turns(x_BT, self.turns_BT, self.count)

    def _of(self, x_BT: Tensor | None) -> Tensor | None:
        return None if x_BT is None else self._sums(x_BT)


def no_turns_for(algorithm: Algorithm) -> ConfigError | None:
    """Why turns cannot have advantages of their own under this algorithm; None where they can."""
    others = "grpo, rloo, dapo, ppo or reinforce_plus_plus, for example"

    def refused(why: str, allowed: str = others, fix: str = "") -> ConfigError:
        fix = fix or "Set environment.credit = trajectory, or choose another algorithm."
        return ConfigError(given=f"credit by turn, but {algorithm.key} {why}", allowed=allowed, fix=fix)

    if not isinstance(algorithm, PolicyGradient) or not algorithm.learns_from_rewards:
        return refused("has no advantages that come from rewards")
    if not algorithm.reads_token_advantages:
        return refused("as configured has one advantage for all of a completion")
    if (gamma := getattr(algorithm, "gamma", None)) not in (None, 1):
        fix = "Leave gamma out; environment.turn_discount is the discount from turn to turn."
        return refused(f"has a gamma of {gamma:g} per token", "gamma = 1", fix)
    if unknown := algorithm.needs & {"squared_probs", "reward_components"}:
        return refused(f"needs what turns do not have: {', '.join(sorted(unknown))}")
    if algorithm.reads_token_rewards and algorithm.looks_at_lengths:
        return refused("fines completions by their lengths in tokens, and a turn is one step")
    if algorithm.correct_from is not None:
        return refused("asks which answers are correct, and a turn is no answer")
    if not algorithm.reads_token_rewards and algorithm.kl_in_reward and "reference" in algorithm.needs:
        return refused(
            "has a KL in the reward of the completion, which is not known turn by turn",
            "kl_coef = 0, or a KL in the loss",
            "Set kl_coef = 0.",
        )
    return None
