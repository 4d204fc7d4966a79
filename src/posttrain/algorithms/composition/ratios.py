"""The ratios of `policy_gradient`, and the inputs and outputs of a term of the loss (RULE 5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from posttrain.algorithms.composition.options import Option, Values
from posttrain.algorithms.metrics import as_ratio
from posttrain.algorithms.shared import advantages_of, per_completion
from posttrain.functional.ratios import (
    sequence_product_ratio,
    sequence_ratio,
    sequence_token_ratio,
    token_ratio,
)
from posttrain.types import Batch, Metrics, Outputs, Tensor


@dataclass(frozen=True, kw_only=True)
class Ratio(Option):
    ratio: Callable[[Tensor, Tensor | None, Tensor], Tensor] | None
    """Function (logprobs, old_logprobs, mask) -> `[B, T]`, or `[B, 1]` if there is one ratio per completion."""
    per_completion: bool = False


@dataclass(frozen=True, kw_only=True)
class Moved:
    """The inputs of a trust region."""

    values: Values
    outputs: Outputs
    batch: Batch
    ratio_of: Callable[[Tensor, Tensor | None, Tensor], Tensor] | None

    @property
    def logprobs_BT(self) -> Tensor:
        return self.outputs.logprobs_BT

    @property
    def mask_BT(self) -> Tensor:
        return self.batch.completion_mask_BT

    @property
    def ratio(self) -> Tensor:
        assert self.ratio_of is not None, "a trust region that reads a ratio is refused without one"
        return self.ratio_of(self.logprobs_BT, self.batch.old_logprobs_BT, self.mask_BT)

    @property
    def advantages_BT(self) -> Tensor:
        return advantages_of(self.batch)

    @property
    def advantages_B1(self) -> Tensor:
        return per_completion(self.advantages_BT, self.mask_BT)

    def as_ratio(self, ratio: Tensor) -> tuple[Tensor, Tensor]:
        """Return advantages and mask in the shape of the ratio."""
        return as_ratio(ratio, self.batch)


@dataclass(frozen=True, kw_only=True)
class Term:
    """The policy's part of the loss under a trust region, `[B, T]` or `[B, 1]`."""

    policy: Tensor
    """Policy term, which an off-policy correction weights."""
    penalty: Tensor | float = 0.0
    """Penalty, which no correction weights."""
    metrics: Metrics = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TrustRegion(Option):
    term: Callable[[Moved], Term]
    ratios: tuple[str, ...]
    """Names of the supported ratios."""
    select: Callable[[Moved], Tensor] | None = None
    """`[B, T]` bool: tokens chosen among all tokens of the update."""
    auto_correction: str = "tis"
    advantage_of: Literal["ratio", "token", "completion"] = "ratio"
    """Unit that has its own advantage in the term: the same unit as the ratio, each token, or the whole completion."""


RATIOS = {
    "none": Ratio(ratio=None),
    "token": Ratio(ratio=lambda logprobs_BT, old_BT, mask_BT: token_ratio(logprobs_BT, old_BT)),
    "sequence": Ratio(ratio=sequence_ratio, per_completion=True),
    "sequence_product": Ratio(ratio=sequence_product_ratio, per_completion=True),
    "sequence_token": Ratio(ratio=sequence_token_ratio),
}
DIFFERENTIATED = ("token", "sequence", "sequence_product", "sequence_token")
WEIGHTS = ("token", "sequence", "sequence_product")
