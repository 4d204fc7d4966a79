"""Forward passes before an update, which compute what an algorithm needs in addition to the outputs of the loss.

Each pass is a record, chosen once from the needs that the algorithm declares. None is a closure, so another process can
receive the same passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from posttrain.functional.masks import masked
from posttrain.functional.preferences import summed
from posttrain.models.microbatches import Split
from posttrain.models.policy import Forward
from posttrain.models.transfer import on_the_host
from posttrain.types import Batch, Experience


class Fill(Protocol):
    """Adds a `[B, T]` tensor that the algorithm needs to the experience."""

    def __call__(self, experience: Experience) -> Experience: ...


class Refresh(Protocol):
    """Adds facts about the policy right before an update to the minibatch."""

    def __call__(self, minibatch: Batch, *, moved: bool) -> Batch:
        """`moved`: has an earlier update on this batch changed the policy since its advantages were computed?"""
        ...


# --- before each update ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CurrentLogprobs:
    """Fills `current_logprobs_BT`. It makes no pass if they are there already and the policy has not moved."""

    forward: Forward
    split: Split

    def __call__(self, minibatch: Batch, *, moved: bool) -> Batch:
        if not moved and minibatch.current_logprobs_BT is not None:
            return minibatch
        return replace(minibatch, current_logprobs_BT=logprobs(minibatch, self.forward, self.split))


@dataclass(frozen=True)
class CurrentEntropy:
    """Fills `current_entropy_BT`."""

    forward: Forward
    split: Split

    def __call__(self, minibatch: Batch, *, moved: bool) -> Batch:
        (entropy_BT,) = per_token(minibatch, self._entropy, self.split, count=1)
        return replace(minibatch, current_entropy_BT=entropy_BT)

    def _entropy(self, micro: Batch) -> list[Tensor]:
        entropy_BT = self.forward(micro).entropy_BT
        assert entropy_BT is not None, "the forward pass of a policy always gives the entropy"
        return [entropy_BT]


@dataclass(frozen=True)
class MismatchedLogRatios:
    """Fills `mismatched_log_ratios_B`: the log-ratio of each prompt with another row's answer; NaN without one."""

    forward: Forward
    split: Split

    def __call__(self, minibatch: Batch, *, moved: bool) -> Batch:
        other = minibatch.mismatched
        assert other is not None, "the feed pairs each prompt with another row's answer"
        mask_BT = other.completion_mask_BT
        rows = Batch(completion_mask_BT=mask_BT, groups_B=minibatch.groups_B, tokens=other.tokens)
        ratios_B = summed(logprobs(rows, self.forward, self.split) - other.ref_logprobs_BT, mask_BT)
        return replace(minibatch, mismatched_log_ratios_B=ratios_B.where(mask_BT.any(dim=-1), torch.nan))


# --- once per step ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Logprobs:
    """Fills the field `name` with the log-probability that `forward` gives each token."""

    name: str
    forward: Forward
    split: Split

    def __call__(self, experience: Experience) -> Experience:
        return replace(experience, **{self.name: logprobs(Batch.from_experience(experience), self.forward, self.split)})


@dataclass(frozen=True)
class Values:
    """Fills `values_BT` with the critic's value before each token."""

    forward: Forward
    split: Split

    def __call__(self, experience: Experience) -> Experience:
        batch = Batch.from_experience(experience)
        (values_BT,) = per_token(batch, lambda micro: [self.forward.values(micro)], self.split, count=1)
        return replace(experience, values_BT=values_BT)


@dataclass(frozen=True)
class OldLogprobsAndValues:
    """Fills `old_logprobs_BT` and `values_BT` if one pass gives both."""

    forward: Forward
    split: Split

    def __call__(self, experience: Experience) -> Experience:
        def both(micro: Batch) -> list[Tensor]:
            outputs = self.forward(micro)
            assert outputs.values_BT is not None
            return [outputs.logprobs_BT, outputs.values_BT]

        old_BT, values_BT = per_token(Batch.from_experience(experience), both, self.split, count=2)
        return replace(experience, old_logprobs_BT=old_BT, values_BT=values_BT)


@dataclass(frozen=True)
class SquaredProbs:
    """Fills `squared_probs_BT` by a pass at half the temperature: sum_v p_v^2 = p^2 / q.

    q is the probability of the same token at half the temperature, where the distribution is proportional to p^2."""

    halved: Forward
    split: Split

    def __call__(self, experience: Experience) -> Experience:
        assert experience.old_logprobs_BT is not None, "squared probabilities need the old log-probabilities"
        halved_BT = logprobs(Batch.from_experience(experience), self.halved, self.split)
        squared_BT = masked((2 * experience.old_logprobs_BT - halved_BT).exp(), experience.scored_mask_BT)
        return replace(experience, squared_probs_BT=squared_BT)


def logprobs(batch: Batch, forward: Forward, split: Split) -> Tensor:
    """`[B, T]` log-probabilities of the batch, without gradient; 0 where the mask is False."""
    return per_token(batch, lambda micro: [forward(micro).logprobs_BT], split, count=1)[0]


@torch.no_grad()
def per_token(batch: Batch, compute: Callable[[Batch], Sequence[Tensor]], split: Split, *, count: int) -> list[Tensor]:
    """The `count` tensors `[B, T]` that `compute` gives, micro-batch by micro-batch and without gradient.

    They are 0 in rows that train nothing, which no micro-batch contains. Each rank computes its own rows, and all ranks
    get all rows: each number comes from one rank, so the sum over the ranks is exact.
    """
    places, parts, kind = [], [], torch.float32
    for rows, micro in split(batch):
        for number, part_BT in enumerate(compute(micro)):
            kind = torch.promote_types(part_BT.dtype, torch.float32)
            if rows:  # without rows, the pass only accompanies the other ranks
                places.append((number, rows))
                parts.append(part_BT.to(kind))
    found = [torch.zeros(batch.completion_mask_BT.shape, dtype=kind) for _ in range(count)]
    for (number, rows), part_BT in zip(places, on_the_host(parts), strict=True):
        found[number][rows] = part_BT
    split.ranks.add_up(found)
    return found
