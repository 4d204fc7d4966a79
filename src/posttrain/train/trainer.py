"""One rank's part of a training job: the model and everything that changes it.

    advantages(experience)   what the algorithm asked for is computed, then its advantages
    update(minibatch)        one optimizer step
    publish(version)         the new weights go to whoever samples, and are proven to have arrived

It knows no run folder and no data. Whatever ranks do together goes through `ranks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from posttrain.config import CriticConfig, RunConfig
from posttrain.heartbeat import beat
from posttrain.models.adapters import trainable_parameters
from posttrain.models.microbatches import Split
from posttrain.models.save import save_model
from posttrain.models.transfer import batch_to, on_the_host
from posttrain.ranks.agreement import ONE, Company, Ranks, on_all
from posttrain.store.shards import read_state
from posttrain.train.auxiliary import AddGradient, nothing_else
from posttrain.train.memory import Room, tokens_of
from posttrain.train.metrics import MetricLog, merge
from posttrain.train.mismatch import mismatch_metrics
from posttrain.train.restoring import detached, require_same_adapters, take_over
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


REHEARSE, RESTORE = "rehearse", "restore"
"""What the first rank announces."""


class _Seen(NamedTuple):
    """What a micro-batch gave, without its graph."""

    micro: Batch
    outputs: Outputs
    loss: Tensor


def _pass_back(outputs: Outputs) -> None:
    """A backward pass through all that was computed, whatever of it a loss would read. Of zeros it gives zeros."""
    found = [one for one in vars(outputs).values() if isinstance(one, torch.Tensor) and one.requires_grad]
    torch.stack([one.float().sum() for one in found]).sum().backward()


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
    """The check that refuses a loss or a gradient that is not finite."""
    publish: Callable[[int], Metrics]
    """Hands the weights of a version to whoever samples."""
    add_gradient: AddGradient = nothing_else
    """What else each update learns from."""
    critic: Critic | None = None
    """The critic, which predicts rewards, if the algorithm has one."""
    held: HeldWeights | None = None
    """The copy of the weights that the sampler decodes with, if there is one."""
    write: Callable[[LoadedModel, Path], object] = write_language_model
    """Writes the folder that transformers opens."""
    ranks: Ranks = ONE
    say: Callable[[str], None] = lambda sentence: None
    """Tells the user what became of memory."""
    rows: Company = field(init=False)
    """Ranks with other rows than this one."""
    room: Room = field(init=False)

    def __post_init__(self) -> None:
        self.rows = self.ranks.across(self.config.train.tensor)
        self.room = Room(self.config.train.microbatch_tokens, self.ranks, self.say)

    def update(self, minibatch: Batch, totals: Totals, step: int, *, number: int = 0) -> Metrics:
        """One optimizer step on these rows, update `number` of the step; `totals` are its denominators on all ranks.

        A loss or a gradient that is not finite raises `NonFiniteError` before any weight changes.
        """
        compute = partial(self._gradient, totals, step, number)
        log = self.room.attempt(partial(self._micros, minibatch), compute, undo=self.optimizer.clear)
        merged = merge(self.rows.gather(log.merged))
        return merged | self.optimizer.step(step, on_norm=partial(self._check_gradient, minibatch, totals, step))

    def _micros(self, batch: Batch, tokens: int) -> list[Batch]:
        """The parts that this rank computes, of at most so many tokens."""
        return [micro for _, micro in Split(self.forward, tokens, self.rows)(batch)]

    def _all_micros(self, batch: Batch) -> Callable[[int], list[Batch]]:
        """Each rank tries the longest rows, whoever is going to have them."""
        return lambda tokens: [micro for _, micro in Split(self.forward, tokens)(batch)]

    def _gradient(self, totals: Totals, step: int, number: int, micros: Sequence[Batch]) -> MetricLog:
        """Add up the gradients of the micro-batches, and of whatever else is learned from."""
        log, seen = MetricLog(), list[_Seen]()
        self.loaded.model.train()  # dropout of the adapters; everything else computes without it
        for micro in micros:
            beat("a micro-batch of an update began")
            outputs = self.forward(micro)
            if not micro.completion_mask_BT.any():
                _pass_back(outputs)
                continue
            here = batch_to(micro, outputs.logprobs_BT.device)
            loss, metrics = self.algorithm.loss(outputs, here, totals)
            if loss.requires_grad:
                loss.backward()
            elif self.ranks.size > 1:
                _pass_back(outputs)  # the others pass back, too
            seen.append(_Seen(micro, outputs.each(Tensor.detach), loss.detach()))
            apart = mismatch_metrics(outputs, here, moved=number > 0, dropout=self.config.has_dropout)
            log.add(metrics | apart)
        loss_sum = on_all(self.ranks, partial(self._observe, seen, step))
        log.add(self.add_gradient(step, number))
        self.loaded.model.eval()
        log.add({"loss": Mean(loss_sum, float(self.rows.rank == 0))})  # each rank's is a part of the sum
        log.read()
        return log

    def _observe(self, seen: Sequence[_Seen], step: int) -> float:
        """The sum of the losses; raises `NonFiniteError` for the first that is not finite.

        They are looked at when all are computed: while the host waits for a number of a GPU, it asks it for nothing.
        """
        loss_sum = 0.0
        for one, loss in zip(seen, on_the_host([one.loss for one in seen]), strict=True):
            if not loss.isfinite():
                self.numbers.observe_loss(loss, one.outputs.each(Tensor.cpu), one.micro, step)
            loss_sum += loss.item()
        return loss_sum

    def rehearse(self, longest: Batch) -> None:
        """Meet the end of memory now, and not in the step that has the longest rows; changes nothing.

        Of these rows the micro-batch with most tokens goes through the model and back, beside as much memory as the
        optimizer is going to hold; where a step has several, once more, as all but the first one meet the gradients.
        Then as much as the optimizer takes for a moment.
        A CPU gives memory when it is written to, so that there only a limit on what may be asked for shows now.
        """
        to_come = self.optimizer.memory_to_come()

        def compute(micros: Sequence[Batch]) -> int:
            self.loaded.model.train()
            for _ in micros[:2]:
                _pass_back(self.forward(max(micros, key=tokens_of)))
            self.optimizer.memory_of_a_step()
            return len(to_come)

        with self.ranks.together(REHEARSE, longest), torch.random.fork_rng(devices=[]), self.loaded.compute.scope():
            self.room.attempt(self._all_micros(longest), compute, undo=self.optimizer.clear)
        self.optimizer.clear()
        self.loaded.model.eval()

    def _check_gradient(self, minibatch: Batch, totals: Totals, step: int, norm: float) -> None:
        """Raise `NonFiniteError` for a gradient that is not finite; rows are tried one by one to name the worst."""

        def norm_of(row: Batch) -> float:
            outputs = self.forward(row)
            loss, _ = self.algorithm.loss(outputs, batch_to(row, outputs.logprobs_BT.device), totals)
            gradients = torch.autograd.grad(loss, self.optimizer.parameters, allow_unused=True)
            return float(nn.utils.get_total_norm([g for g in gradients if g is not None]))

        alone = self.ranks.size == 1  # else one row's gradient is a matter of all ranks
        self.numbers.observe_gradient(norm, minibatch, step, row_norm=norm_of if alone else None)

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
            "tokens_per_microbatch": self.room.state(),
        }

    def restore(self, tensors: Mapping[str, Any], state: Mapping[str, Any], path: Path) -> None:
        """Go on from what `tensors` and `state` gave; raises CheckpointError where `path` is of another model."""
        take_over(self.trained_parameters(), tensors["policy"], path, "weights than this model")
        if self.critic:
            take_over(self.critic.parameters, tensors.get("critic", {}), path, "weights than this critic")
        require_same_adapters(state.get("adapters", {}), self._adapters(), path)
        self.optimizer.restore(tensors["optimizer"])
        self.room.load_state(state.get("tokens_per_microbatch", self.room.tokens))
        self.advantages.load_state_dict(state["algorithm"])
        if self.held and "held" in tensors:
            self.held.restore(tensors["held"], state["published"])

    def restore_parts(self, state: Path, path: Path) -> Any:
        """The same from a state folder whose tensors lie in parts, or for ranks that take a part of each; all ranks do
        it together, whatever the number of those that wrote it. Returns what is plain JSON there."""
        with self.ranks.together(RESTORE, str(state), str(path)):
            tensors, plain = read_state(state)
            on_all(self.ranks, partial(self.restore, tensors, plain, path))
        return plain

    def _adapters(self) -> dict[str, int]:
        """What scales the adapters that are trained, beside their weights."""
        lora, critic = self.config.lora, self.config.critic or CriticConfig()
        scales = {"lora.alpha": lora.alpha} if lora else {}
        beside = self.critic is not None and critic.kind_beside(lora) == "lora"
        return scales | ({"critic.alpha": critic.alpha} if beside else {})
