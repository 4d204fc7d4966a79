"""Views of experience that present its turns as tokens or as completions; credit.py explains their use."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

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


@dataclass(frozen=True, kw_only=True)
class Turns:
    """Experience with the positions of its turns. S: number of turns of the longest trajectory, at least 1."""

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
        """Return the experience with each turn as one token: `[B, S]` instead of `[B, T]`."""
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
        """Return `batch` with the results of `found`, in which turns are tokens."""
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
        """Return the experience with each turn as one completion. Turn k of prompt p is in group k * P + p."""
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
        """Return `batch` with the results of `found`, in which turns are completions."""
        assert found.advantages_BT is not None
        shape = self.count, *self.turns_BT.shape
        return replace(
            batch,
            completion_mask_BT=found.completion_mask_BT.reshape(shape).any(dim=0),
            advantages_BT=found.advantages_BT.reshape(shape).sum(dim=0),
        )

    @property
    def returns_SPG(self) -> Tensor:
        """Return G_k of each trajectory; meaningless for turns that the trajectory does not have."""
        return self._by_group(discounted_to_go(self._rewards_BS, self.discount))

    @property
    def has_SPG(self) -> Tensor:
        """True if the trajectory has a turn k. Every trajectory has a first turn."""
        turns = torch.arange(self.count, device=self.turns_BT.device)
        return self._by_group(turns <= self._last_B1)

    @property
    def _of_last_turn(self) -> Tensor:
        """`[P, G]` reward of the last turn of each trajectory."""
        rewards_BS = self._rewards_BS
        return rewards_BS.gather(1, self._last_B1).reshape(self.experience.rewards_PG.shape)

    @property
    def _last_B1(self) -> Tensor:
        """Index of the last turn of each trajectory; 0 for a trajectory without sampled tokens."""
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
        """Reshape `[B, S]` to `[S, P, G]`."""
        return x_BS.T.reshape(self.count, *self.experience.rewards_PG.shape)

    def _sums(self, x_BT: Tensor) -> Tensor:
        return sum_over_turns(x_BT, self.turns_BT, self.count)

    def _of(self, x_BT: Tensor | None) -> Tensor | None:
        return None if x_BT is None else self._sums(x_BT)
