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

from posttrain.algorithms import Algorithm
from posttrain.functional.preferences import summed
from posttrain.train.run import Refresh
from posttrain.types import Batch, Experience, Mean, Metrics, Outputs

Fill = Callable[[Experience], Experience]
Forward = Callable[[Batch], Outputs]
Split = Callable[[Batch], Iterator[tuple[list[int], Batch]]]


class Weighing:
    """`weigh(experience) -> Batch` for online algorithms; holds the algorithm's state between the steps."""

    def __init__(self, algorithm: Algorithm, fills: Sequence[Fill], *, mask_truncated: bool) -> None:
        self.algorithm, self.fills, self.mask_truncated = algorithm, fills, mask_truncated
        self.state = algorithm.initial_state()
        self.seen: Metrics = {}

    def __call__(self, experience: Experience) -> Batch:
        for fill in self.fills:
            experience = fill(experience)
        batch = self.algorithm.to_batch(experience, self.state)
        self.seen = self._remembered() | self.algorithm.step_metrics(experience, batch)
        if "current" in self.algorithm.needs:  # the policy has not moved yet: the old pass, where there was one, tells
            batch = replace(batch, current_logprobs_BT=experience.old_logprobs_BT)
        self.state = self.algorithm.next_state(self.state, experience)
        return without_truncated(batch, experience) if self.mask_truncated else batch

    def metrics(self) -> Metrics:
        """What the algorithm says of the step that was weighed last, as a whole."""
        return self.seen

    def _remembered(self) -> Metrics:
        """The state with which the step is weighed, as `algorithm/<name>`."""
        return {f"algorithm/{name}": Mean(float(value), 1.0) for name, value in self.state_dict().items()}

    def state_dict(self) -> dict[str, Any]:
        return {} if self.state is None else asdict(self.state)

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        if self.state is not None:
            self.state = replace(self.state, **saved)


class Given:
    """`weigh` for data that is given: a batch already. Holds the algorithm's state, which each update moves on."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.state = algorithm.initial_state()

    def __call__(self, experience: Batch) -> Batch:
        return experience

    def remembering(self, refresh: Refresh) -> Refresh:
        """`refresh`, and then the state takes in what it found, before the rows are learned from."""

        def refresh_and_remember(minibatch: Batch, *, moved: bool) -> Batch:
            minibatch = refresh(minibatch, moved=moved)
            self.state = self.algorithm.next_state(self.state, minibatch)
            return self.algorithm.to_batch(minibatch, self.state)

        return refresh_and_remember

    def metrics(self) -> Metrics:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {} if self.state is None else asdict(self.state)

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        if self.state is not None:
            self.state = replace(self.state, **saved)


def without_truncated(batch: Batch, experience: Experience) -> Batch:
    """Truncated completions leave the loss; their rewards have already taken part in the group statistics."""
    keep_B1 = ~experience.truncated_PG.reshape(-1, 1)[batch.row_ids_B]
    return replace(batch, completion_mask_BT=batch.completion_mask_BT & keep_B1)


def with_current_logprobs(forward: Forward, split: Split) -> Refresh:
    """`refresh` that fills `current_logprobs_BT`; no pass where weighing has done it and no update came between."""

    def refresh(minibatch: Batch, *, moved: bool) -> Batch:
        if not moved and minibatch.current_logprobs_BT is not None:
            return minibatch
        return replace(minibatch, current_logprobs_BT=scored(minibatch, forward, split))

    return refresh


def with_current_entropy(forward: Forward, split: Split) -> Refresh:
    """`refresh` that fills `current_entropy_BT`."""

    def entropy(micro: Batch) -> list[Tensor]:
        found_BT = forward(micro).entropy_BT
        assert found_BT is not None, "refreshing has asked for it"
        return [found_BT]

    def refresh(minibatch: Batch, *, moved: bool) -> Batch:
        return replace(minibatch, current_entropy_BT=per_token(minibatch, entropy, split, count=1)[0])

    return refresh


def with_mismatched_log_ratios(forward: Forward, split: Split) -> Refresh:
    """`refresh` that fills `mismatched_log_ratios_B`: of each prompt with another row's answer; NaN without one."""

    def refresh(minibatch: Batch, *, moved: bool) -> Batch:
        other = minibatch.mismatched
        assert other is not None, "the feed pairs each prompt with another row's answer"
        mask_BT = other.completion_mask_BT
        rows = Batch(completion_mask_BT=mask_BT, groups_B=minibatch.groups_B, tokens=other.tokens)
        ratios_B = summed(scored(rows, forward, split) - other.ref_logprobs_BT, mask_BT)
        return replace(minibatch, mismatched_log_ratios_B=ratios_B.where(mask_BT.any(dim=-1), torch.nan))

    return refresh


def in_turn(refreshes: Sequence[Refresh]) -> Refresh:
    """One after the other; none leaves the rows as they were weighed."""

    def refresh(minibatch: Batch, *, moved: bool) -> Batch:
        for one in refreshes:
            minibatch = one(minibatch, moved=moved)
        return minibatch

    return refresh


def scored(batch: Batch, forward: Forward, split: Split) -> Tensor:
    """`[B, T]` log-probabilities of the batch, without gradient; 0 where the mask is False."""
    return per_token(batch, lambda micro: [forward(micro).logprobs_BT], split, count=1)[0]


@torch.no_grad()
def per_token(batch: Batch, compute: Callable[[Batch], Sequence[Tensor]], split: Split, *, count: int) -> list[Tensor]:
    """The `count` tensors `[B, T]` that `compute` gives, part by part and without gradient.

    They are 0 in rows that train nothing, which no part contains.
    """
    mask_BT = batch.completion_mask_BT
    found = [torch.zeros(mask_BT.shape, device=mask_BT.device) for _ in range(count)]
    for rows, micro in split(batch):
        for whole_BT, part_BT in zip(found, compute(micro), strict=True):
            whole_BT[rows] = part_BT.float()
    return found


def fill_logprobs(name: str, forward: Forward, split: Split) -> Fill:
    """A collaborator that computes `[B, T]` log-probabilities without gradient and puts them into the field `name`."""

    def fill(experience: Experience) -> Experience:
        return replace(experience, **{name: scored(Batch.from_experience(experience), forward, split)})

    return fill


def fill_values(values: Callable[[Batch], Tensor], split: Split) -> Fill:
    """A collaborator that puts the critic's value before each token into the experience."""

    def fill(experience: Experience) -> Experience:
        batch = Batch.from_experience(experience)
        (values_BT,) = per_token(batch, lambda micro: [values(micro)], split, count=1)
        return replace(experience, values_BT=values_BT)

    return fill


def fill_old_logprobs_and_values(forward: Forward, split: Split) -> Fill:
    """The same and the old log-probabilities, where one pass gives both."""

    def both(micro: Batch) -> list[Tensor]:
        outputs = forward(micro)
        assert outputs.values_BT is not None
        return [outputs.logprobs_BT, outputs.values_BT]

    def fill(experience: Experience) -> Experience:
        old_BT, values_BT = per_token(Batch.from_experience(experience), both, split, count=2)
        return replace(experience, old_logprobs_BT=old_BT, values_BT=values_BT)

    return fill
