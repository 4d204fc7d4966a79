"""What an algorithm declares, and the settings that all policy-gradient algorithms share.

An algorithm is a frozen record of settings with two pure functions: `advantages` (rewards in, `[B, T]` out) and `loss`
(the forward pass and a batch in, a scalar out). The machinery never asks which algorithm runs; it reads `data_kind`,
`min_group_size` and `needs`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torch import Tensor

from posttrain.algorithms.settings import Finite, settings
from posttrain.errors import ConfigError
from posttrain.types import Batch, Experience, Metrics, Outputs, Totals

DataKind = Literal["prompts", "examples"]
Need = Literal["old", "old_for_advantages", "reference", "entropy"]
"""What an algorithm may ask the machinery for, beside the policy's own log-probabilities."""

NEEDS: dict[Need, str] = {
    "old": "log-probabilities at the start of the update, as the anchor of a ratio; the pass is skipped when the batch "
    "is consumed in one update, where the policy is its own anchor",
    "old_for_advantages": "the same numbers before the first update: the pass always runs",
    "reference": "log-probabilities under the frozen reference model",
    "entropy": "the entropy of each token's distribution, with gradient",
}


@dataclass(frozen=True, kw_only=True)
class Card:
    """The facts about an algorithm that documentation, `explain`, advisor and planner read."""

    title: str
    paper: str
    summary: str
    """One sentence: the idea."""
    choices: dict[str, str]
    """The row of the nine choices (baseline, normalisation, ratio, trust region, KL, aggregation, correction, filter,
    shaping), or of the four choices of a preference loss."""
    use_when: str
    avoid_when: str
    differs: tuple[str, ...] = ()
    """Where we differ from the paper and from TRL, verl and OpenRLHF."""
    sources: dict[str, str] = field(default_factory=dict)
    """Setting -> where its default comes from."""
    metrics: dict[str, str] = field(default_factory=dict)
    """Metric -> formula, beside those that every run logs."""


@settings
class Algorithm:
    """Base of all algorithms: it declares, and answers the questions that most of them answer alike."""

    key: ClassVar[str]
    card: ClassVar[Card]
    data_kind: ClassVar[DataKind]
    min_group_size: ClassVar[int] = 1
    shared_sources: ClassVar[dict[str, str]] = {}
    """Sources of the defaults of inherited settings, as `Card.sources`."""

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset()

    def initial_state(self) -> Any:
        """What changes during a run: a small frozen dataclass of plain numbers, checkpointed; None for most."""
        return None

    def next_state(self, state: Any, experience: Experience) -> Any:
        """The state after this experience was used."""
        return state

    def prepare(self, batch: Batch) -> Batch:
        """Compute, before the first backward and without gradient, whatever couples the rows of an optimizer step."""
        return batch

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        """Scalar loss of these rows, divided by the totals of the whole step, and metrics of these rows."""
        raise NotImplementedError


@settings
class PolicyGradient(Algorithm):
    """Settings that every policy-gradient algorithm has."""

    data_kind: ClassVar[DataKind] = "prompts"
    shared_sources: ClassVar[dict[str, str]] = {"entropy_coef": "0: TRL, verl, OpenRLHF"}

    entropy_coef: Finite = 0.0
    """Weight of the entropy bonus, a mean over the tokens of the step. 0 also means: no gradient of it is computed."""

    def advantages(self, experience: Experience, state: Any = None) -> Tensor:
        """`[B, T]` advantages, 0 outside the trained tokens, without gradient."""
        raise NotImplementedError

    def entropy_needs(self) -> frozenset[Need]:
        return frozenset({"entropy"}) if self.entropy_coef else frozenset()

    def require_group(self, experience: Experience) -> None:
        """The group-relative advantage of a single completion is always 0: nothing would be learnt (RULE 12)."""
        if experience.group_size < self.min_group_size:
            raise ConfigError(
                given=f"group_size = {experience.group_size}, but {self.key} compares completions of the same prompt",
                allowed=f"an integer of at least {self.min_group_size}",
                fix="Set sampling.group_size = 8, or use algorithm reinforce, which needs no group.",
            )
