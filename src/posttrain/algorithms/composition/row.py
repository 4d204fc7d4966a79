"""The base class of algorithms that are a row of choices of `policy_gradient`."""

from __future__ import annotations

import functools
from dataclasses import fields
from typing import Any

from posttrain.algorithms.base import Need, PolicyGradient
from posttrain.algorithms.policy_gradient import ComposedPolicyGradient
from posttrain.algorithms.settings import settings
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class Row(PolicyGradient):
    """An algorithm that computes the same numbers as `policy_gradient` with its row and its settings."""

    @functools.cached_property
    def composed(self) -> ComposedPolicyGradient:
        choices = {name: option for name, option in self.choices.items() if name != "correction"}
        return ComposedPolicyGradient(**choices, **{f.name: getattr(self, f.name) for f in fields(self)})

    def __post_init__(self) -> None:
        assert self.composed

    @property
    def auto_correction(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.composed.auto_correction

    @property
    def reads_token_advantages(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.composed.reads_token_advantages

    @property
    def needs(self) -> frozenset[Need]:
        return self.composed.needs

    @property
    def group_size_needed(self) -> int:
        return self.composed.group_size_needed

    def advantages(self, experience: Experience, state: Any = None) -> Tensor:
        self.require_group(experience)
        return self.composed.advantages(experience, state)

    def prepare(self, batch: Batch) -> Batch:
        return self.composed.prepare(batch)

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        return self.composed.loss(outputs, batch, totals)
