"""Delivery of the trained weights to the sampler, and the proof that they arrived."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from posttrain.engines.delivery import DeliveryProof, check_receipt, deliver
from posttrain.engines.sampler import Sampler
from posttrain.errors import NonFiniteError
from posttrain.experience.deliveries import TrainerScores
from posttrain.models.layout import local_part
from posttrain.ranks.agreement import ONE, Ranks, on_all
from posttrain.types import Metrics


class Publisher:
    """Hands the trained weights to the sampler as a new policy version, and proves that they arrived (promise 3).

    It publishes every `every` steps. In between, the sampler keeps the version that it has.
    """

    def __init__(
        self,
        model: nn.Module,
        sampler: Sampler,
        proof: DeliveryProof,
        trainer_scores: TrainerScores,
        *,
        every: int = 1,
    ) -> None:
        self.model, self.sampler, self.proof, self.trainer_scores = model, sampler, proof, trainer_scores
        self.every = every

    def __call__(self, step: int) -> Metrics:
        if step % self.every:
            return {}
        receipt = deliver(self.model, self.sampler, step)
        return self.proof.check(self.trainer_scores, self.model, self.sampler, receipt, step)


FINITE = "finite"
"""The first rank's announcement of this check. Each rank checks its part of the weights."""


class FiniteWeights:
    """Replaces the publisher if nothing samples, because then no probe would notice weights that are not finite."""

    def __init__(self, model: nn.Module, ranks: Ranks = ONE) -> None:
        self.trained, self.ranks = {name: p for name, p in model.named_parameters() if p.requires_grad}, ranks

    @torch.no_grad()
    def __call__(self, step: int) -> Metrics:
        with self.ranks.together(FINITE, step):
            return on_all(self.ranks, partial(self._check, step))

    def _check(self, step: int) -> Metrics:
        finite = torch.stack([local_part(parameter).isfinite().all() for parameter in self.trained.values()])
        if not finite.all():
            bad = int((~finite).sum())
            first = next(name for name, fine in zip(self.trained, finite.tolist(), strict=True) if not fine)
            raise NonFiniteError(
                given=f"step {step}: after the update, {bad} of {len(finite)} trained tensors are not finite ({first})",
                allowed="finite weights",
                fix="They are not saved. Lower train.learning_rate; then `posttrain resume` the run.",
            )
        return {}


class HeldWeights:
    """The weights of a sampler that has a model of its own. While they are older, they are part of a checkpoint."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def tensors(self, step: int) -> dict[str, Tensor]:
        """All weights of the sampler; empty if they are the weights of `step`, which the checkpoint holds anyway."""
        if self.sampler.version == step:
            return {}
        return dict(self.sampler.held())

    @property
    def version(self) -> int:
        return self.sampler.version

    def restore(self, tensors: Mapping[str, Tensor], version: int) -> None:
        """Restore the weights that `tensors` gave."""
        receipt = self.sampler.deliver(tensors.items(), version)
        check_receipt(receipt, tensors.items(), whole=False)
