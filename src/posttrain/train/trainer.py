"""One rank's part of a training job: the model and everything that changes it.

    advantages(experience)   compute the inputs that the algorithm needs, then its advantages
    update(minibatch)        one optimizer step
    publish(version)         give the new weights to the sampler, and prove that they arrived

It knows neither the run folder nor the data. All communication between ranks goes through `ranks`.
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
"""The first rank's announcements of these operations."""


class _Seen(NamedTuple):
    """The results of a micro-batch, without their graph."""

    micro: Batch
    outputs: Outputs
    loss: Tensor


def _pass_back(outputs: Outputs) -> None:
    """A backward pass through all outputs, whichever of them a loss would read. Outputs of 0 give gradients of 0."""
    found = [one for one in vars(outputs).values() if isinstance(one, torch.Tensor) and one.requires_grad]
    torch.stack([one.float().sum() for one in found]).sum().backward()


@dataclass(kw_only=True)
class Trainer:
    """The trainer of one rank, made once from the config and from the needs that the algorithm declares."""

    config: RunConfig
    algorithm: Algorithm
    loaded: LoadedModel
    forward: Callable[[Batch], Outputs]
    advantages: Advantages
    optimizer: Updater
    numbers: NonFinite
    """The check that refuses a loss or a gradient that is not finite."""
    publish: Callable[[int], Metrics]
    """Gives the weights of a version to the sampler."""
    add_gradient: AddGradient = nothing_else
    """An additional loss that each update learns from."""
    critic: Critic | None = None
    """The critic, which predicts rewards, if the algorithm has one."""
    held: HeldWeights | None = None
    """The sampler's own copy of the weights, if it has one."""
    write: Callable[[LoadedModel, Path], object] = write_language_model
    """Writes a model folder that transformers can open."""
    ranks: Ranks = ONE
    say: Callable[[str], None] = lambda sentence: None
    """Tells the user when memory has run out."""
    rows: Company = field(init=False)
    """The ranks that have other rows than this one."""
    room: Room = field(init=False)

    def __post_init__(self) -> None:
        self.rows = self.ranks.across(self.config.train.tensor)
        self.room = Room(self.config.train.microbatch_tokens, self.ranks, self.say)

    def update(self, minibatch: Batch, totals: Totals, step: int, *, number: int = 0) -> Metrics:
        """Take one optimizer step on these rows, update `number` of the step. `totals` are counted on all ranks.

        A loss or a gradient that is not finite raises `NonFiniteError` before any weight changes.
        """
        compute = partial(self._gradient, totals, step, number)
        log = self.room.attempt(partial(self._micros, minibatch), compute, undo=self.optimizer.clear)
        merged = merge(self.rows.gather(log.merged))
        return merged | self.optimizer.step(step, on_norm=partial(self._check_gradient, minibatch, totals, step))

    def _micros(self, batch: Batch, tokens: int) -> list[Batch]:
        """The micro-batches of this rank, with at most `tokens` tokens each."""
        return [micro for _, micro in Split(self.forward, tokens, self.rows)(batch)]

    def _all_micros(self, batch: Batch) -> Callable[[int], list[Batch]]:
        """A plan in which each rank tries the longest rows, whichever rank will get them in training."""
        return lambda tokens: [micro for _, micro in Split(self.forward, tokens)(batch)]

    def _gradient(self, totals: Totals, step: int, number: int, micros: Sequence[Batch]) -> MetricLog:
        """Accumulate the gradients of the micro-batches and of the additional loss."""
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
                _pass_back(outputs)  # because the other ranks make a backward pass, too
            seen.append(_Seen(micro, outputs.each(Tensor.detach), loss.detach()))
            apart = mismatch_metrics(outputs, here, moved=number > 0, dropout=self.config.has_dropout)
            log.add(metrics | apart)
        loss_sum = on_all(self.ranks, partial(self._observe, seen, step))
        log.add(self.add_gradient(step, number))
        self.loaded.model.eval()
        log.add({"loss": Mean(loss_sum, float(self.rows.rank == 0))})  # each rank has a part of the sum
        log.read()
        return log

    def _observe(self, seen: Sequence[_Seen], step: int) -> float:
        """The sum of the losses; raises `NonFiniteError` for the first that is not finite.

        It reads them after all micro-batches: while the host waits for a number from a GPU, it gives the GPU no work.
        """
        loss_sum = 0.0
        for one, loss in zip(seen, on_the_host([one.loss for one in seen]), strict=True):
            if not loss.isfinite():
                self.numbers.observe_loss(loss, one.outputs.each(Tensor.cpu), one.micro, step)
            loss_sum += loss.item()
        return loss_sum

    def rehearse(self, longest: Batch) -> None:
        """Find out now whether memory is enough for a step with the longest rows. Changes no weight.

        The micro-batch with the most tokens makes a forward and a backward pass, while as much memory is held as the
        optimizer will need. If a step has several micro-batches, it makes them twice, because all but the first run
        with the gradients in memory. Then the temporary memory of an optimizer step is allocated.
        A CPU provides memory only when it is written to, so there only a limit on allocations shows now.
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
        """Raise `NonFiniteError` for a gradient that is not finite. It tries rows one by one to name the worst."""

        def norm_of(row: Batch) -> float:
            outputs = self.forward(row)
            loss, _ = self.algorithm.loss(outputs, batch_to(row, outputs.logprobs_BT.device), totals)
            gradients = torch.autograd.grad(loss, self.optimizer.parameters, allow_unused=True)
            return float(nn.utils.get_total_norm([g for g in gradients if g is not None]))

        alone = self.ranks.size == 1  # with several ranks, all would have to compute one row's gradient
        self.numbers.observe_gradient(norm, minibatch, step, row_norm=norm_of if alone else None)

    # --- what a checkpoint holds of it -------------------------------------------------------------------------------

    def trained_parameters(self) -> dict[str, nn.Parameter]:
        """The policy's trained parameters by name, without a critic's adapter on the same base."""
        elsewhere = {id(parameter) for parameter in self.critic.parameters.values()} if self.critic else set()
        trained = trainable_parameters(self.loaded.model)
        return {name: parameter for name, parameter in trained.items() if id(parameter) not in elsewhere}

    def weights(self) -> dict[str, Tensor]:
        """Every weight, trained or not, as in the checkpoint's model folder."""
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
        """The rest of the state, as plain JSON."""
        return {
            "algorithm": self.advantages.state_dict(),
            "published": self.held.version if self.held else step,
            "adapters": self._adapters(),
            **({"critic_offset": self.critic.offset.value} if self.critic else {}),
            "tokens_per_microbatch": self.room.state(),
        }

    def restore(self, tensors: Mapping[str, Any], state: Mapping[str, Any], path: Path) -> None:
        """Restore what `tensors` and `state` gave; raises CheckpointError if `path` belongs to another model."""
        take_over(self.trained_parameters(), tensors["policy"], path, "weights than this model")
        if self.critic:
            take_over(self.critic.parameters, tensors.get("critic", {}), path, "weights than this critic")
            self.critic.offset.value = state.get("critic_offset", 0.0)
        require_same_adapters(state.get("adapters", {}), self._adapters(), path)
        self.optimizer.restore(tensors["optimizer"])
        self.room.load_state(state.get("tokens_per_microbatch", self.room.tokens))
        self.advantages.load_state_dict(state["algorithm"])
        if self.held and "held" in tensors:
            self.held.restore(tensors["held"], state["published"])

    def restore_parts(self, state: Path, path: Path) -> Any:
        """Restore a state folder on all ranks together. Returns its plain JSON.

        Any number of ranks may have written it. Each rank takes its part of each tensor."""
        with self.ranks.together(RESTORE, str(state), str(path)):
            tensors, plain = read_state(state)
            on_all(self.ranks, partial(self.restore, tensors, plain, path))
        return plain

    def _adapters(self) -> dict[str, int]:
        """The settings that scale the trained adapters."""
        lora, critic = self.config.lora, self.config.critic or CriticConfig()
        scales = {"lora.alpha": lora.alpha} if lora else {}
        beside = self.critic is not None and critic.kind_beside(lora) == "lora"
        return scales | ({"critic.alpha": critic.alpha} if beside else {})
