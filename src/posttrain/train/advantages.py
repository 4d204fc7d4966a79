"""From experience to a batch: fill in the inputs that the algorithm needs, compute advantages, then filter rows.

The state that an algorithm keeps between steps lives here. Nothing here depends on which algorithm runs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

from posttrain.algorithms import Algorithm
from posttrain.algorithms.credit import Credit, Whole
from posttrain.train.passes import Fill, Refresh
from posttrain.types import Batch, Experience, Mean, Metrics

INITIAL = "initial state"
"""Key in a saved state of the state with which a run of the same settings begins."""


class Advantages(Protocol):
    """Turns experience into a batch, and holds the state that the algorithm keeps between steps."""

    def __call__(self, experience: Any) -> Batch: ...
    def refresh(self, minibatch: Batch, *, moved: bool) -> Batch: ...
    def metrics(self) -> Metrics: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, saved: dict[str, Any]) -> None: ...


class Remembering:
    """Base class that holds the state of an algorithm between steps."""

    def __init__(self, algorithm: Algorithm, refreshes: Sequence[Refresh]) -> None:
        self.algorithm, self.refreshes = algorithm, refreshes
        self.state = algorithm.initial_state()

    def refresh(self, minibatch: Batch, *, moved: bool) -> Batch:
        for refresh in self.refreshes:
            minibatch = refresh(minibatch, moved=moved)
        return minibatch

    def metrics(self) -> Metrics:
        return {}

    def _numbers(self) -> dict[str, float]:
        return {} if self.state is None else asdict(self.state)

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint, together with the initial state, which may come from settings."""
        return {} if self.state is None else self._numbers() | {INITIAL: asdict(self.algorithm.initial_state())}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore the state. A number whose initial value is a setting that has changed since begins anew."""
        if self.state is None:
            return
        now = asdict(self.algorithm.initial_state())
        then = saved.get(INITIAL, now)  # checkpoints of earlier versions have none
        anew = {name for name in now if json.dumps(then.get(name)) != json.dumps(now[name])}
        self.state = replace(self.state, **{name: saved[name] for name in saved if name not in {*anew, INITIAL}})


class OfExperience(Remembering):
    """For sampled answers: adds old and reference log-probabilities and values, then the algorithm's advantages."""

    def __init__(
        self,
        algorithm: Algorithm,
        fills: Sequence[Fill],
        refreshes: Sequence[Refresh],
        *,
        mask_truncated: bool,
        credit: Credit = Whole(),  # noqa: B008 - frozen
    ) -> None:
        """`credit` decides which tokens earned the reward of a completion."""
        super().__init__(algorithm, refreshes)
        self.fills, self.mask_truncated, self.credit = fills, mask_truncated, credit
        self.seen: Metrics = {}

    def __call__(self, experience: Experience) -> Batch:
        for fill in self.fills:
            experience = fill(experience)
        batch = self.credit.to_batch(self.algorithm, experience, self.state)
        before = {f"algorithm/{name}": Mean(float(value), 1.0) for name, value in self._numbers().items()}
        self.seen = before | self.algorithm.step_metrics(experience, batch)
        if "current" in self.algorithm.needs:  # the policy has not moved: old log-probabilities (if any) are current
            batch = replace(batch, current_logprobs_BT=experience.old_logprobs_BT)
        self.state = self.algorithm.next_state(self.state, experience)
        return without_truncated(batch, experience) if self.mask_truncated else batch

    def metrics(self) -> Metrics:
        """The algorithm's metrics for the whole last step, and the state with which the step began."""
        return self.seen


class OfGivenData(Remembering):
    """For given answers, which are a batch already. Each update changes the state before it trains on its rows."""

    def __call__(self, experience: Batch) -> Batch:
        return experience

    def refresh(self, minibatch: Batch, *, moved: bool) -> Batch:
        minibatch = super().refresh(minibatch, moved=moved)
        self.state = self.algorithm.next_state(self.state, minibatch)
        return self.algorithm.to_batch(minibatch, self.state)


def without_truncated(batch: Batch, experience: Experience) -> Batch:
    """The batch without truncated completions in the loss. Their rewards still count in the group statistics."""
    keep_B1 = ~experience.truncated_PG.reshape(-1, 1)[batch.row_ids_B]
    return replace(batch, completion_mask_BT=batch.completion_mask_BT & keep_B1)
