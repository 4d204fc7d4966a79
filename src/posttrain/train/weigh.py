"""From experience to a batch: fill in what the algorithm asked for, compute its advantages, drop what is filtered.

Each thing that an algorithm may need is one collaborator here, chosen once from what the algorithm declares; neither
the loop nor this file knows which algorithm runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from posttrain.algorithms import PolicyGradient
from posttrain.train.run import Refresh
from posttrain.types import Batch, Experience, Outputs

Fill = Callable[[Experience], Experience]
Forward = Callable[[Batch], Outputs]
Split = Callable[[Batch], Iterator[tuple[list[int], Batch]]]


class Weighing:
    """`weigh(experience) -> Batch` for online algorithms; holds the algorithm's state between the steps."""

    def __init__(self, algorithm: PolicyGradient, fills: Sequence[Fill], *, mask_truncated: bool) -> None:
        self.algorithm, self.fills, self.mask_truncated = algorithm, fills, mask_truncated
        self.state = algorithm.initial_state()

    def __call__(self, experience: Experience) -> Batch:
        for fill in self.fills:
            experience = fill(experience)
        batch = self.algorithm.to_batch(experience, self.state)
        if "current" in self.algorithm.needs:  # the policy has not moved yet: the old pass, where there was one, tells
            batch = replace(batch, current_logprobs_BT=experience.old_logprobs_BT)
        self.state = self.algorithm.next_state(self.state, experience)
        return without_truncated(batch, experience) if self.mask_truncated else batch

    def state_dict(self) -> dict[str, Any]:
        return {} if self.state is None else asdict(self.state)

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        if self.state is not None:
            self.state = replace(self.state, **saved)


class AsBatch:
    """`weigh` for offline algorithms: their data is a batch already."""

    def __call__(self, experience: Batch) -> Batch:
        return experience

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        pass


def without_truncated(batch: Batch, experience: Experience) -> Batch:
    """Truncated completions leave the loss; their rewards have already taken part in the group statistics."""
    keep_B1 = ~experience.truncated_PG.reshape(-1, 1)
    return replace(batch, completion_mask_BT=batch.completion_mask_BT & keep_B1)


def as_weighed(minibatch: Batch, *, moved: bool) -> Batch:
    """`refresh` for algorithms that do not look at the policy between the updates of a batch."""
    return minibatch


def with_current_logprobs(forward: Forward, split: Split) -> Refresh:
    """`refresh` that fills `current_logprobs_BT`; no pass where weighing has done it and no update came between."""

    def refresh(minibatch: Batch, *, moved: bool) -> Batch:
        if not moved and minibatch.current_logprobs_BT is not None:
            return minibatch
        return replace(minibatch, current_logprobs_BT=scored(minibatch, forward, split))

    return refresh


@torch.no_grad()
def scored(batch: Batch, forward: Forward, split: Split) -> Tensor:
    """`[B, T]` log-probabilities of the batch, without gradient; 0 where the mask is False."""
    logprobs_BT = torch.zeros(batch.completion_mask_BT.shape, device=batch.completion_mask_BT.device)
    for rows, micro in split(batch):
        logprobs_BT[rows] = forward(micro).logprobs_BT.float()
    return logprobs_BT


def fill_logprobs(name: str, forward: Forward, split: Split) -> Fill:
    """A collaborator that computes `[B, T]` log-probabilities without gradient and puts them into the field `name`."""

    def fill(experience: Experience) -> Experience:
        return replace(experience, **{name: scored(Batch.from_experience(experience), forward, split)})

    return fill
