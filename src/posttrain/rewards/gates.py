"""Gates: rewards that count only if another reward has reached a score, such as form only if the answer is right.

    rewards:
      - name: math
      - {name: format, weight: 0.2, gate: math}                  # counts if math is at least 1
      - {name: cosine, weight: 0.5, gate: math, settings: {...}}  # takes `correct`, and decides itself

The gate compares the other reward's own score, before its weight and its own gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from posttrain.errors import ConfigError

if TYPE_CHECKING:
    from posttrain.config.scorers import GateConfig

GATE_STATE = "correct"
"""Parameter that tells a function for each completion whether its gate is open. Such a function is not gated."""


@dataclass(frozen=True, kw_only=True)
class Gate:
    """The score that another reward has to reach."""

    label: str
    at_least: float = 1.0

    @staticmethod
    def of(given: GateConfig | Gate | str | Mapping[str, Any] | None) -> Gate | None:
        """The gate that a config declares. A label alone means a score of at least 1."""
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
        """Whether the gate is open; None if the other reward did not apply or failed.

        >>> gate = Gate(label="math", at_least=0.5)
        >>> gate.opens(0.5), gate.opens(0.4), gate.opens(None)
        (True, False, None)
        """
        return None if score is None else score >= self.at_least
