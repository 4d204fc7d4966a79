"""Rewards that count only where another one has reached a score: form where the answer is right, and not by itself.

    rewards:
      - name: math
      - {name: format, weight: 0.2, gate: math}                  # counts where math is at least 1
      - {name: cosine, weight: 0.5, gate: math, settings: {...}}  # is told by `correct`, and decides itself

What is compared is the other reward's own score, before its weight and its own gate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from posttrain.errors import ConfigError

GATE_STATE = "correct"
"""The parameter by which a function learns whether its gate is open, for each completion; it is then not gated."""


class GateLike(Protocol):
    """What is read of a configured gate: `posttrain.config.GateConfig` has it, and so has `Gate`."""

    @property
    def label(self) -> str: ...
    @property
    def at_least(self) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Gate:
    """Which reward has to reach which score."""

    label: str
    at_least: float = 1.0

    @staticmethod
    def of(given: GateLike | str | Mapping[str, Any] | None) -> Gate | None:
        """A label alone stands for a score of at least 1."""
        if given is None:
            return None
        if isinstance(given, str):
            return Gate(label=given)
        fields = given if isinstance(given, Mapping) else {"label": given.label, "at_least": given.at_least}
        try:
            return Gate(**fields)
        except TypeError:
            raise ConfigError(
                given=f"gate = {given!r}", allowed="the label of a reward, or {label: LABEL, at_least: 0.5}"
            ) from None

    def opens(self, score: float | None) -> bool | None:
        """None where the other reward did not apply, or failed.

        >>> gate = Gate(label="math", at_least=0.5)
        >>> gate.opens(0.5), gate.opens(0.4), gate.opens(None)
        (True, False, None)
        """
        return None if score is None else score >= self.at_least


class Gated(Protocol):
    @property
    def label(self) -> str: ...
    @property
    def gate(self) -> Gate | None: ...
    @property
    def receives_gate(self) -> bool: ...


Some = TypeVar("Some", bound=Gated)


def in_waves(components: Sequence[Some]) -> list[list[Some]]:
    """Components that can be computed side by side, and after them those that are told what came of them."""
    by_label = {component.label: component for component in components}

    def depth(component: Gated) -> int:
        return 1 + depth(by_label[component.gate.label]) if component.receives_gate and component.gate else 0

    depths = [depth(component) for component in components]
    return [
        [component for component, found in zip(components, depths, strict=True) if found == level]
        for level in sorted(set(depths))
    ]
