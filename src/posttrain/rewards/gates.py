"""Rewards that count only where another one has reached a score: form where the answer is right, and not by itself.

    rewards:
      - name: math
      - {name: format, weight: 0.2, gate: math}                  # counts where math is at least 1
      - {name: cosine, weight: 0.5, gate: math, settings: {...}}  # is told by `correct`, and decides itself

What is compared is the other reward's own score, before its weight and its own gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from posttrain.errors import ConfigError

if TYPE_CHECKING:
    from posttrain.config.scorers import GateConfig

GATE_STATE = "correct"
"""The parameter by which a function learns whether its gate is open, for each completion; it is then not gated."""


@dataclass(frozen=True, kw_only=True)
class Gate:
    """Which reward has to reach which score."""

    label: str
    at_least: float = 1.0

    @staticmethod
    def of(given: GateConfig | Gate | str | Mapping[str, Any] | None) -> Gate | None:
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
