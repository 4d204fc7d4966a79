"""Whether bfloat16 shows what a run changes: a short one with a small learning rate moves weights less than it rounds.

Weights are trained in float32 and rounded to bfloat16 where a model computes in it. AdamW moves a weight by about the
learning rate in a step, so the sum of all learning rates bounds its way. Two neighbouring numbers of bfloat16 near w
are 2^(floor(log2 |w|) - 7) apart. Of weights that stand anywhere between them, a move of d changes the rounded number
of d over that distance. Where this share is small, the model that computes in bfloat16 stays as it was, or what it
learns is in the few weights that stood close to the middle between two numbers: in float32 the same weights answer
otherwise.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from posttrain.config import RunConfig
from posttrain.models.compute import SMALL, choose_compute_dtype
from posttrain.models.load import LoadedModel
from posttrain.train.optimizer import learning_rate_at

SAMPLED = 4096
"""Weights of each matrix that are looked at."""
LEAST = 1 / 8
"""Share of the weights that a run has to round to another number. Runs with 24% and 30% answered alike in bfloat16 and
in float32; of one with 4%, a third of the effect was left in float32 (docs/wins.md)."""


class Moved(NamedTuple):
    """How far a run moves a weight, at most, and how far apart the numbers of bfloat16 are near half of its weights."""

    run: float
    apart: float

    @property
    def share(self) -> float:
        """Of the weights that are rounded to another number by the end, at most."""
        return min(1.0, self.run / self.apart)

    @property
    def sentence(self) -> str:
        return (
            f"this run moves a weight by {self.run:.1g} at most, the sum of its learning rates, and the numbers of "
            f"bfloat16 are {self.apart:.1g} apart, so that most weights are rounded to the number that they had"
        )


def moved(model: nn.Module, config: RunConfig) -> Moved | None:
    """None where a comparison says nothing: no update, or an adapter, whose weights begin at 0."""
    train = config.train
    way = sum(learning_rate_at(step, train) for step in range(1, train.steps + 1)) * train.updates_per_batch
    matrices = [weight for weight in model.parameters() if weight.dim() >= 2 and weight.requires_grad]
    if config.lora is not None or way == 0 or not matrices or any(weight.is_meta for weight in matrices):
        return None
    sizes = torch.cat([some_of(weight) for weight in matrices])
    typical = float(sizes[sizes > 0].median()) if bool((sizes > 0).any()) else 0.0
    return Moved(way, spacing(typical)) if typical else None


def some_of(weight: Tensor) -> Tensor:
    """Absolute values of at most `SAMPLED` weights, spread over the matrix."""
    flat = weight.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // SAMPLED)].float().abs().cpu()


def spacing(value: float) -> float:
    """Of bfloat16, which has 8 bits of mantissa, near this value.

    >>> spacing(1.0) == 2.0**-7, spacing(0.0168) == 2.0**-13
    (True, True)
    """
    _, exponent = math.frexp(value)
    return 2.0 ** (exponent - 8)


def precision_for(config: RunConfig, loaded: LoadedModel) -> tuple[str, list[str]]:
    """`model.precision` for a run that begins, and what to tell the user.

    `auto` is float32 on a CPU where bfloat16 would lose the updates. Whoever asks for bfloat16 gets it, with a warning,
    and so does a run on a GPU, where it is what `auto` means.
    """
    asked = config.model.precision
    on_cpu = loaded.device.type == "cpu"
    measured = sum(weight.numel() for weight in loaded.model.parameters()) >= SMALL  # else auto is float32 on a CPU
    may_round = asked == "bfloat16" or (asked == "auto" and (measured if on_cpu else rounds_on_a_gpu(loaded)))
    found = moved(loaded.model, config) if may_round else None
    if found is None or found.share >= LEAST:
        return asked, []
    if asked == "auto" and on_cpu:
        return "float32", [f"model.precision: auto is float32 here: {found.sentence}"]
    fix = "Set model.precision=float32, or raise train.learning_rate or train.steps"
    return asked, [f"{found.sentence}. What is measured in bfloat16 may not hold in float32. {fix}"]


def rounds_on_a_gpu(loaded: LoadedModel) -> bool:
    return choose_compute_dtype("auto", loaded.device) == torch.bfloat16
