"""Does bfloat16 keep the updates of a run? With a small learning rate, weights may move by less than the rounding.

Weights are trained in float32, and rounded to bfloat16 if the model computes in it. AdamW moves a weight by about the
learning rate per step, so the sum of all learning rates estimates how far a weight can move. Two neighbouring bfloat16
numbers near w are 2^(floor(log2 |w|) - 7) apart. A weight at a random place between them that moves by d is rounded to
another number with probability d over that spacing. If this happens to few weights, the model in bfloat16 stays the
same, or changes only in weights that were close to the middle between two numbers. In float32 the same weights then
give other answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from posttrain.config import CriticConfig, RunConfig
from posttrain.models.compute import SMALL, choose_compute_dtype, has_bfloat16
from posttrain.train.schedule import learning_rate_at

if TYPE_CHECKING:
    from posttrain.models.load import LoadedModel

SAMPLED = 4096
"""Number of weights of each matrix that are checked, drawn with a fixed seed."""
TYPICAL = 0.02
"""Absolute value assumed for a weight that is still in its file, as with several ranks."""
LEAST_ROUNDED = 1 / 4
"""Share of weights that must round to another bfloat16 number. docs/wins.md has runs on both sides of it."""


class Moved(NamedTuple):
    """How far a run moves a weight, and the share of the weights that bfloat16 then rounds to another number."""

    distance: float
    share: float

    @property
    def sentence(self) -> str:
        return (
            f"this run moves a weight by about {self.distance:.1g}, the sum of its learning rates, and bfloat16 then "
            f"rounds {self.share:.0%} of the weights to another number, less than the {LEAST_ROUNDED:.0%} required"
        )


def moved(model: nn.Module, config: RunConfig) -> Moved | None:
    """The estimate for a run; None for adapters, whose weights start at 0, and if nothing is trained."""
    distance = distance_of(config)
    matrices = [weight for weight in model.parameters() if weight.dim() >= 2 and weight.requires_grad]
    if config.lora is not None or distance == 0 or not matrices:
        return None
    shares = [share_rounded(drawn(weight), distance) * weight.numel() for weight in matrices]
    return Moved(distance, sum(shares) / sum(weight.numel() for weight in matrices))


def distance_of(config: RunConfig) -> float:
    """The sum of the learning rates of the steps that train the policy."""
    train = config.train
    waits = (config.critic or CriticConfig()).warmup_steps if "values" in config.algorithm.build().needs else 0
    rates = (learning_rate_at(step, train) for step in range(waits + 1, train.steps + 1))
    return sum(rates) * train.updates_per_batch


def loses_typical(config: RunConfig) -> bool:
    """Would bfloat16 lose the updates of a model whose weights are not loaded, as in a plan?"""
    distance = distance_of(config)
    return config.lora is None and distance > 0 and share_rounded(torch.tensor([TYPICAL]), distance) < LEAST_ROUNDED


def drawn(weight: Tensor) -> Tensor:
    """Absolute values of `SAMPLED` weights of a matrix."""
    if weight.is_meta:
        return torch.tensor([TYPICAL])
    places = torch.randint(weight.numel(), (SAMPLED,), generator=torch.Generator().manual_seed(0))
    return weight.detach().reshape(-1)[places.to(weight.device)].float().abs().cpu()


def share_rounded(sizes: Tensor, distance: float) -> float:
    """Share of weights with these absolute values that become another bfloat16 number if they move by `distance`."""
    return float((distance / spacing(sizes)).clamp(max=1.0).mean())


def spacing(sizes: Tensor) -> Tensor:
    """Spacing of bfloat16 numbers (8 bits of mantissa) near each of these absolute values.

    >>> spacing(torch.tensor([1.0, 0.0168])).log2().tolist()
    [-7.0, -13.0]
    """
    _, exponents = torch.frexp(sizes.clamp(min=2.0**-100))
    return torch.ldexp(torch.ones_like(sizes), exponents - 8)


def lost(config: RunConfig, loaded: LoadedModel) -> Moved | None:
    """The estimate if bfloat16 would lose the updates of this run; None if it keeps enough of them or is not used."""
    asked, on_cpu = config.model.precision, loaded.device.type == "cpu"
    if asked == "float32" or (asked == "auto" and not may_round(loaded, on_cpu)):
        return None
    found = moved(loaded.model, config)
    return None if found is None or found.share >= LEAST_ROUNDED else found


def told(found: Moved | None, asked: str, dtype: torch.dtype, *, exact: bool) -> list[str]:
    """Sentences for the user of a run that computes in this precision. `exact`: this rule has chosen float32."""
    if found is None:
        return []
    if exact:
        return [f"model.precision: {asked} is float32 here: {found.sentence}"]
    fix = "Set model.precision=float32, or raise train.learning_rate or train.steps"
    warning = f"{found.sentence}. Results measured in bfloat16 may not hold in float32. {fix}"
    return [warning] if dtype == torch.bfloat16 else []


def may_round(loaded: LoadedModel, on_cpu: bool) -> bool:
    """Can `auto` mean bfloat16 for this model on this device?"""
    if on_cpu:
        return has_bfloat16() and sum(weight.numel() for weight in loaded.model.parameters()) >= SMALL
    return choose_compute_dtype("auto", loaded.device) == torch.bfloat16
