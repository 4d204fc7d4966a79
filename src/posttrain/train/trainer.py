"""What one rank owns of a training job: the model and everything that changes it.

    advantages(experience)   what the algorithm asked for is computed, then its advantages
    update(minibatch)        one optimizer step
    publish(version)         the new weights go to whoever samples, and are proven to have arrived

It knows no run folder, no data and no other rank; what ranks must agree on goes through `ranks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from posttrain.config import CriticConfig, RunConfig
from posttrain.errors import CheckpointError
from posttrain.models.adapters import trainable_parameters
from posttrain.models.microbatches import Split
from posttrain.models.save import save_model
from posttrain.train.auxiliary import AddGradient, nothing_else
from posttrain.train.metrics import MetricLog
from posttrain.train.publish import mismatch_metrics
from posttrain.train.ranks import OneRank, Ranks
from posttrain.types import Batch, Mean, Metrics, Outputs, Totals

if TYPE_CHECKING:
    from posttrain.algorithms import Algorithm
    from posttrain.models.critic import Critic
    from posttrain.models.load import LoadedModel
    from posttrain.train.advantages import Advantages
    from posttrain.train.guards import NonFinite
    from posttrain.train.optimizer import Updater
    from posttrain.train.publish import HeldWeights


def write_language_model(loaded: LoadedModel, folder: Path) -> None:
    save_model(loaded.model, loaded.tokenizer, folder, eos_ids=loaded.eos_ids, pad_id=loaded.pad_id)


@dataclass(kw_only=True)
class Trainer:
    """Made once for each rank, from the config and from what the algorithm declares."""

    config: RunConfig
    algorithm: Algorithm
    loaded: LoadedModel
    forward: Callable[[Batch], Outputs]
    advantages: Advantages
    optimizer: Updater
    numbers: NonFinite
    """What refuses a loss or a gradient that is not finite."""
    publish: Callable[[int], Metrics]
    """Hands the weights of a version to whoever samples."""
    add_gradient: AddGradient = nothing_else
    """What else each update learns from."""
    critic: Critic | None = None
    """What predicts rewards, where the algorithm has one."""
    held: HeldWeights | None = None
    """What the sampler decodes with, where that is a copy."""
    write: Callable[[LoadedModel, Path], object] = write_language_model
    """Writes the folder that transformers opens."""
    ranks: Ranks = field(default_factory=OneRank)

    def update(self, minibatch: Batch, totals: Totals, step: int, *, number: int = 0) -> Metrics:
        """One optimizer step on these rows, update `number` of the step; `totals` are its denominators on all ranks.

        A loss or a gradient that is not finite raises `NonFiniteError` before any weight changes.
        """
        log, loss_sum = MetricLog(), 0.0
        self.loaded.model.train()  # dropout of the adapters; everything else computes without it
        split = Split(self.forward, self.config.train.tokens_per_microbatch)
        for micro in self.ranks.even([micro for _, micro in split(minibatch)]):
            outputs = self.forward(micro)
            loss, metrics = self.algorithm.loss(outputs, micro, totals)
            self.numbers.observe_loss(loss, outputs, micro, step)
            if loss.requires_grad:
                loss.backward()
            loss_sum += loss.item()
            log.add(metrics | mismatch_metrics(outputs, micro))
        log.add(self.add_gradient(step, number))
        self.loaded.model.eval()
        log.add({"loss": Mean(loss_sum, 1.0)})
        log.add(self.optimizer.step(step, on_norm=partial(self._check_gradient, minibatch, totals, step)))
        return self.ranks.merge(log.merged)

    def _check_gradient(self, minibatch: Batch, totals: Totals, step: int, norm: float) -> None:
        """Raise `NonFiniteError` for a gradient that is not finite; rows are tried one by one to name the worst."""

        def norm_of(row: Batch) -> float:
            loss, _ = self.algorithm.loss(self.forward(row), row, totals)
            gradients = torch.autograd.grad(loss, self.optimizer.parameters, allow_unused=True)
            return float(nn.utils.get_total_norm([g for g in gradients if g is not None]))

        self.numbers.observe_gradient(norm, minibatch, step, row_norm=norm_of)

    # --- what a checkpoint holds of it -------------------------------------------------------------------------------

    def trained_parameters(self) -> dict[str, nn.Parameter]:
        """The policy's, by name; a critic's adapter on the same base is not among them."""
        elsewhere = {id(parameter) for parameter in self.critic.parameters.values()} if self.critic else set()
        trained = trainable_parameters(self.loaded.model)
        return {name: parameter for name, parameter in trained.items() if id(parameter) not in elsewhere}

    def weights(self) -> dict[str, Tensor]:
        """Every weight, trained or not: what the checkpoint's model folder holds."""
        return dict(self.loaded.model.state_dict())

    def tensors(self, step: int) -> dict[str, Any]:
        """Every tensor that the step after `step` depends on."""
        held = self.held.tensors(step) if self.held else {}
        return {
            "policy": detached(self.trained_parameters()),
            "optimizer": self.optimizer.tensors(),
            **({"critic": detached(self.critic.parameters)} if self.critic else {}),
            **({"held": held} if held else {}),
        }

    def state(self, step: int) -> dict[str, Any]:
        """The rest, as plain JSON."""
        return {
            "algorithm": self.advantages.state_dict(),
            "published": self.held.version if self.held else step,
            "adapters": self._adapters(),
        }

    def restore(self, tensors: Mapping[str, Any], state: Mapping[str, Any], path: Path) -> None:
        """Go on from what `tensors` and `state` gave; raises CheckpointError where `path` is of another model."""
        take_over(self.trained_parameters(), tensors["policy"], path, "weights than this model")
        if self.critic:
            take_over(self.critic.parameters, tensors.get("critic", {}), path, "weights than this critic")
        require_same_adapters(state.get("adapters", {}), self._adapters(), path)
        self.optimizer.restore(tensors["optimizer"])
        self.advantages.load_state_dict(state["algorithm"])
        if self.held and "held" in tensors:
            self.held.restore(tensors["held"], state["published"])

    def _adapters(self) -> dict[str, int]:
        """What scales the adapters that are trained, beside their weights."""
        lora, critic = self.config.lora, self.config.critic or CriticConfig()
        scales = {"lora.alpha": lora.alpha} if lora else {}
        beside = self.critic is not None and critic.kind_beside(lora) == "lora"
        return scales | ({"critic.alpha": critic.alpha} if beside else {})


def detached(parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in parameters.items()}


_SAME = "the weights of a run with the same model, the same critic and the same LoRA settings"
_AS_STARTED = "Resume with the config that the run was started with."


@torch.no_grad()
def take_over(parameters: Mapping[str, nn.Parameter], saved: Mapping[str, Tensor], path: Path, what: str) -> None:
    """Write the saved values into the parameters; raises `CheckpointError` where they are not the same ones."""
    if parameters.keys() != saved.keys():
        odd = sorted(parameters.keys() ^ saved.keys())
        raise CheckpointError(
            given=f"{path} holds other trained {what} has: {', '.join(odd[:3])}",
            allowed=_SAME,
            fix=_AS_STARTED,
        )
    for name, tensor in saved.items():
        if parameters[name].shape != tensor.shape:
            raise CheckpointError(
                given=f"{path} holds other trained {what} has: {name} is {list(tensor.shape)} there and "
                f"{list(parameters[name].shape)} here",
                allowed=_SAME,
                fix=_AS_STARTED,
            )
    for name, tensor in saved.items():
        parameters[name].copy_(tensor)


def require_same_adapters(saved: Mapping[str, Any], now: Mapping[str, Any], path: Path) -> None:
    """Raises `CheckpointError` where the saved weights of adapters would be scaled by another number."""
    different = [f"{name} was {saved[name]} and is {now.get(name)}" for name in saved if now.get(name) != saved[name]]
    if different:
        raise CheckpointError(
            given=f"the adapters in {path} were trained with another scale: {', '.join(different)}",
            allowed=_SAME,
            fix=_AS_STARTED,
        )
