"""Models whose matrices neighbours can divide; used by the code that divides them and by the planner.

It is a separate module because dividing matrices imports transformers, for which a plan should not have to wait.
"""

from __future__ import annotations

from dataclasses import dataclass

from posttrain.errors import ConfigError

FAMILIES = ("llama", "qwen2", "qwen3")
"""Model types for which a step on several ranks equals a step on one (tests/ranks/test_same_gradient.py)."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The matrices to divide in a model of the type `kind`."""

    kind: str
    heads: int
    kv_heads: int
    mlp_width: int
    hidden: int


def refusal(sizes: Sizes, ranks: int, *, given: str) -> ConfigError | None:
    """Return why `ranks` neighbours cannot divide a model's matrices; None if they can. `given` names the setting.

    >>> sizes = Sizes(kind="qwen3", heads=6, kv_heads=2, mlp_width=12, hidden=48)
    >>> error = refusal(sizes, 4, given="train.tensor = 4")
    >>> error.given, error.fix
    ('train.tensor = 4 and 6 heads, 2 of keys and values, an MLP of 12, a hidden state of 48', 'Set train.tensor = 2.')
    """
    if sizes.kind not in FAMILIES:
        return ConfigError(
            given=f"{given} and a model of type {sizes.kind}",
            allowed=f"a dense model of one of the types {', '.join(FAMILIES)}; other types are untested",
            fix="Set train.tensor = 1: train.devices divides the weights of any model.",
        )
    numbers = (sizes.heads, sizes.kv_heads, sizes.mlp_width, sizes.hidden)
    if not any(number % ranks for number in numbers):
        return None
    fitting = [less for less in range(1, ranks) if not any(number % less for number in numbers)]
    return ConfigError(
        given=f"{given} and {sizes.heads} heads, {sizes.kv_heads} of keys and values, an MLP of {sizes.mlp_width}, "
        f"a hidden state of {sizes.hidden}",
        allowed="a divisor of all four",
        fix=f"Set train.tensor = {max(fitting)}.",
    )
