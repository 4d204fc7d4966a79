"""Which gates of rewards lead nowhere. `rewards/gates.py` says what a gate does."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from posttrain.errors import ConfigError


def wrong_gate(gates: Mapping[str, str | None]) -> ConfigError | None:
    """What is wrong with them: one that leads to no reward, or in a circle. `gates`: label -> label of its gate.

    >>> wrong_gate({"math": None, "format": "math"})
    >>> wrong_gate({"a": "b", "b": "a"}).given
    'the gates of rewards go in a circle: a, b, a'
    """
    labels = list(gates)
    for label, gate in gates.items():
        if gate is not None and gate not in gates:
            close = difflib.get_close_matches(gate, labels, n=1)
            meant = f'; did you mean "{close[0]}"?' if close else ""
            return ConfigError(
                given=f'the gate of "{label}" is "{gate}", and no reward is called that{meant}',
                allowed=", ".join(other for other in labels if other != label) or "none: it is the only reward",
                fix="Name another reward by its label, which is its name unless `label` is set.",
            )
    for label in labels:
        path = [label]
        while (following := gates[path[-1]]) is not None and following not in path:
            path.append(following)
        if following is not None:
            circle = [*path[path.index(following) :], following]
            return ConfigError(
                given=f"the gates of rewards go in a circle: {', '.join(circle)}",
                allowed="gates that end at a reward without one",
                fix=f'Remove the gate of "{circle[-2]}".',
            )
    return None
