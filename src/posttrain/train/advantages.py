"""From experience to a batch: what the algorithm asked for is computed, then its advantages; then rows are filtered.

The algorithm's state between the steps lives here. Which algorithm runs, nobody asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

from posttrain.algorithms import Algorithm
from posttrain.algorithms.credit import Credit, Whole
from posttrain.train.passes import Fill, Refresh
from posttrain.types import Batch, Experience, Mean, Metrics


class Advantages(Protocol):
    """Experience -> batch, with whatever the algorithm remembers between the steps."""

    def __call__(self, experience: Any) -> Batch: ...
    def refresh(self, minibatch: Batch, *, moved: bool) -> Batch: ...
    def metrics(self) -> Metrics: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, saved: dict[str, Any]) -> None: ...


class Remembering:
    """The state that an algorithm keeps between the steps."""

    def __init__(self, algorithm: Algorithm, refreshes: Sequence[Refresh]) -> None:
        self.algorithm, self.refreshes = algorithm, refreshes
        self.state = algorithm.initial_state()

    def refresh(self, minibatch: Batch, *, moved: bool) -> Batch:
        for refresh in self.refreshes:
            minibatch = refresh(minibatch, moved=moved)
        return minibatch

    def metrics(self) -> Metrics:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {} if self.state is None else asdict(self.state)

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        if self.state is not None:
            self.state = replace(self.state, **saved)


class OfExperience(Remembering):
    """The way of sampled answers: old and reference log-probabilities, values, then the algorithm's advantages."""

    def __init__(
        self,
        algorithm: Algorithm,
        fills: Sequence[Fill],
        refreshes: Sequence[Refresh],
        *,
        mask_truncated: bool,
        credit: Credit = Whole(),  # noqa: B008 - frozen
    ) -> None:
        """`credit`: who earned the rewards of a completion."""
        super().__init__(algorithm, refreshes)
        self.fills, self.mask_truncated, self.credit = fills, mask_truncated, credit
        self.seen: Metrics = {}

    def __call__(self, experience: Experience) -> Batch:
        for fill in self.fills:
            experience = fill(experience)
        batch = self.credit.to_batch(self.algorithm, experience, self.state)
        before = {f"algorithm/{name}": Mean(float(value), 1.0) for name, value in self.state_dict().items()}
        self.seen = before | self.algorithm.step_metrics(experience, batch)
        if "current" in self.algorithm.needs:  # the policy has not moved yet: the old pass, where there was one, tells
            batch = replace(batch, current_logprobs_BT=experience.old_logprobs_BT)
        self.state = self.algorithm.next_state(self.state, experience)
        return without_truncated(batch, experience) if self.mask_truncated else batch

    def metrics(self) -> Metrics:
        """The algorithm's metrics for the whole last step, and the state with which the step began."""
        return self.seen


class OfGivenData(Remembering):
    """For given answers, which are a batch already. The state takes in each update before its rows are learned from."""

    def __call__(self, experience: Batch) -> Batch:
        return experience

    def refresh(self, minibatch: Batch, *, moved: bool) -> Batch:
        minibatch = super().refresh(minibatch, moved=moved)
        self.state = self.algorithm.next_state(self.state, minibatch)
        return self.algorithm.to_batch(minibatch, self.state)


def without_truncated(batch: Batch, experience: Experience) -> Batch:
    """Truncated completions leave the loss; their rewards have already taken part in the group statistics."""
    keep_B1 = ~experience.truncated_PG.reshape(-1, 1)[batch.row_ids_B]
    return replace(batch, completion_mask_BT=batch.completion_mask_BT & keep_B1)
