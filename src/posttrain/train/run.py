"""A run: its collaborators, where it stands, and what it leaves in its folder."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from posttrain.config import CriticConfig
from posttrain.errors import CheckpointError
from posttrain.experience.group import pair_roles
from posttrain.models.adapters import trainable_parameters
from posttrain.models.save import save_model
from posttrain.report.lines import short_line
from posttrain.report.store import read_run
from posttrain.report.verdict import in_brief
from posttrain.store.checkpoint import Checkpoint, Checkpoints, SavePolicy, load_state, save_state, size_of
from posttrain.store.run_store import EVALUATION, rollout_table
from posttrain.train.auxiliary import AddGradient, nothing_else
from posttrain.watch import NOTHING_SEEN, Looked, Watch, nothing_to_watch, respond

if TYPE_CHECKING:
    from posttrain.algorithms import Algorithm
    from posttrain.config import Resolved, RunConfig
    from posttrain.evaluate.measure import Measure
    from posttrain.experience.feed import Fed, Feed
    from posttrain.models.compute import Compute
    from posttrain.models.critic import Critic
    from posttrain.models.load import LoadedModel
    from posttrain.report.terminal import TerminalView
    from posttrain.store.run_store import RunStore
    from posttrain.train.guards import Guards
    from posttrain.train.optimizer import Updater
    from posttrain.train.publish import HeldWeights
    from posttrain.types import Batch, Metrics, Outputs


class Weigh(Protocol):
    """Experience -> batch, with whatever the algorithm remembers between the steps."""

    def __call__(self, experience: Any) -> Batch: ...
    def metrics(self) -> Metrics: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, saved: dict[str, Any]) -> None: ...


class Refresh(Protocol):
    """What an update needs to know of the policy as it is right before that update."""

    def __call__(self, minibatch: Batch, *, moved: bool) -> Batch:
        """`moved`: has an earlier update on this batch changed the policy since it was weighed?"""
        ...


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


def write_language_model(loaded: LoadedModel, folder: Path) -> None:
    save_model(loaded.model, loaded.tokenizer, folder, eos_ids=loaded.eos_ids, pad_id=loaded.pad_id)


@dataclass(repr=False)
class Run:
    """What `train` and `resume` return; while training, what the loop works with."""

    resolved: Resolved
    store: RunStore
    view: TerminalView
    loaded: LoadedModel
    algorithm: Algorithm
    forward: Callable[[Batch], Outputs]
    weigh: Weigh
    refresh: Refresh
    optimizer: Updater
    guards: Guards
    feed: Feed
    publish: Callable[[int], Metrics]
    """Hands the weights of a version to whoever samples."""
    measure: Measure
    checkpoints: Checkpoints
    watch: Watch = field(default_factory=nothing_to_watch)
    """What notices that a reward is gamed."""
    add_gradient: AddGradient = nothing_else
    """What else each update learns from."""
    critic: Critic | None = None
    """What predicts rewards, where the algorithm has one."""
    held: HeldWeights | None = None
    """What the sampler decodes with, where that is a copy."""
    step: int = 0
    """Steps done, which is also the policy version."""
    num_tokens: int = 0
    """Prompt and completion tokens of all rows so far, those included that were sampled and not trained."""
    seconds: float = 0.0
    """Spent in steps so far, as metrics.jsonl says."""
    evaluation: dict[str, Any] = field(default_factory=dict)
    """The content of evaluation.json."""
    stop_asked: bool = False
    """Did a Ctrl-C come in its last measurement? The run is done; what would follow it is not begun."""
    saves: SavePolicy = field(default_factory=SavePolicy)
    write_model: Callable[[LoadedModel, Path], object] = write_language_model
    """Writes the folder that transformers opens."""

    @property
    def config(self) -> RunConfig:
        return self.resolved.config

    @property
    def folder(self) -> Path:
        return self.store.folder

    def __fspath__(self) -> str:
        """Its folder, for whatever takes the folder of a run: `resume(run)`, `evaluate(run)`, `export(run)`."""
        return str(self.folder)

    @property
    def reached(self) -> str:
        """The limit that ends the run here: the name of its setting, or nothing while there are steps to do."""
        train = self.config.train
        limits = (
            ("train.steps", self.step, train.steps),
            ("train.stop_after_tokens", self.num_tokens, train.stop_after_tokens),
            ("train.stop_after_seconds", self.seconds, train.stop_after_seconds),
        )
        return next((name for name, spent, limit in limits if limit is not None and spent >= limit), "")

    @property
    def compute(self) -> Compute:
        return self.loaded.compute

    @property
    def model_path(self) -> Path | None:
        """The newest checkpoint's `model/`: a folder that `from_pretrained` opens."""
        newest = self.checkpoints.newest()
        return newest.model if newest else None

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One record per step, as in metrics.jsonl."""
        return self.store.read_metrics()

    def summary(self) -> dict[str, Any]:
        report = self.folder / "report.html"
        return {
            "folder": str(self.folder),
            "model_path": str(self.model_path),
            "report": str(report) if report.exists() else None,
            "steps": self.step,
            "verdict": in_brief(read_run(self.folder)),
            "evaluation": self.evaluation,
        }

    def __repr__(self) -> str:
        """`<Run runs/demo-1, 20 of 20 steps, baseline accuracy 22% (15% to 31%), trained accuracy 95% (90% to 98%)>`"""
        sides = [name for name in ("baseline", "trained") if name in self.evaluation]
        both = [self.evaluation[name] for name in sides]
        measured = [f"{name} {short_line(self.evaluation[name], *both)}" for name in sides]
        steps = f"{self.step} of {self.config.train.steps} steps"
        return f"<Run {', '.join([str(self.folder), steps, *measured])}>"

    def _repr_html_(self) -> str:
        return f"<pre>{json.dumps(self.summary(), indent=2)}</pre>"

    def describe(self) -> dict[str, Any]:
        """What is about to run, for the first lines on the screen."""
        config = self.config
        trained = sum(p.numel() for p in self.trained_parameters().values())
        rows = config.train.prompts_per_step * (config.sampling.group_size if self.feed.samples else 1)
        return {
            "run": str(self.folder),
            "model": f"{config.model.path}, {trained:,} trained parameters, {self.compute.describe()}",
            **({"critic": self.critic.describe()} if self.critic else {}),
            "algorithm": self.algorithm.card.title + self._correction(),
            "data": self.feed.describe(),
            "step": f"{config.train.prompts_per_step} rows of the data"
            + (f" × {config.sampling.group_size} completions = {rows} rows" if self.feed.samples else "")
            + f", {config.train.updates_per_batch} optimizer step(s)",
            "steps": f"{config.train.steps}" + (f", continuing after step {self.step}" if self.step else ""),
        }

    def _correction(self) -> str:
        """What `correction: auto` was decided to be, or was set to."""
        applied, asked = self.algorithm.correction_name, self.config.algorithm.build().correction_name
        if applied in ("none", "auto"):
            return ""
        return f", correction {applied}" + (" (auto)" if asked == "auto" else "")

    # --- what a step leaves behind -----------------------------------------------------------------------------------

    def record_step(self, fed: Fed, batch: Batch, metrics: dict[str, float], looked: Looked = NOTHING_SEEN) -> None:
        """One line of metrics, every completion on file, with what was found out about it, one line on the screen."""
        values = {**metrics, "num_tokens": self.num_tokens}
        self.store.metrics(self.step, values)
        if fed.rollout is not None:
            rollout = fed.rollout
            table = rollout_table(
                self.step,
                rollout.trained,
                batch.advantages_BT,
                roles=None if batch.chosen_B is None else pair_roles(batch, rollout.trained),
                discarded=rollout.discarded,
                greedy=rollout.greedy,
                columns=looked.columns,
            )
            self.store.rollouts(self.step, table)
            self.store.judgements(self.step, [*rollout.judgements, *looked.judgements])
            if self.view.show_samples and (self.step == 1 or self.step % 10 == 0):
                self.view.samples(self.step, table.slice(0, 2 * self.config.sampling.group_size).to_pylist())
        self.view.step({"step": self.step, **values}, self.config.train.steps)

    def warn(self, about: str, message: str) -> None:
        self.store.event("warning", message, step=self.step, about=about)
        self.view.event("warning", message)

    # --- measuring --------------------------------------------------------------------------------------------------

    def measure_model(self, name: str) -> None:
        """Judge the present weights; `name` is "baseline", "trained" or "step N"."""
        measured = self.measure(self.folder / "evaluations", name)
        if name == "baseline":
            warning = self.watch.before_training(self.folder / "evaluations" / "baseline.jsonl")
            if warning is not None:
                self.warn("check", warning)
        if name in measured:
            self.view.evaluation(name, measured[name])
            self.store.event("evaluation", name, step=self.step, evaluation=measured[name])
        if measured and not name.startswith("step"):
            if name in measured and name == "trained" and "baseline" not in self.evaluation:
                measured.setdefault("lost", "the measurement before training is not on file")
            if "lost" in measured:
                self.warn("evaluation", f"{measured['lost']}: what training changed is not measured row by row")
            self.evaluation = {**self.evaluation, **measured}
            self.store.record(EVALUATION, self.evaluation)
        if name in measured:
            respond(self, self.watch.evaluated(self.step, measured[name]), is_over=name == "trained")

    # --- saving and restoring ---------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Any]:
        """Every tensor that the next step depends on."""
        held = self.held.tensors(self.step) if self.held else {}
        return {
            "policy": detached(self.trained_parameters()),
            "optimizer": self.optimizer.tensors(),
            **({"critic": detached(self.critic.parameters)} if self.critic else {}),
            **({"held": held} if held else {}),
        }

    def weights(self) -> dict[str, Tensor]:
        """Every weight, trained or not: what the checkpoint's model folder holds."""
        return dict(self.loaded.model.state_dict())

    def trained_parameters(self) -> dict[str, nn.Parameter]:
        """The policy's, by name; a critic's adapter on the same base is not among them."""
        elsewhere = {id(parameter) for parameter in self.critic.parameters.values()} if self.critic else set()
        trained = trainable_parameters(self.loaded.model)
        return {name: parameter for name, parameter in trained.items() if id(parameter) not in elsewhere}

    def save(self, *, required: bool = False) -> None:
        """Write the checkpoint of this step; a miss is a warning, the third in a row or a required one an error."""
        plain = {
            "num_tokens": self.num_tokens,
            "algorithm": self.weigh.state_dict(),
            "guards": self.guards.state(),
            "watch": self.watch.state(),
            "published": self.held.version if self.held else self.step,
            "adapters": self._adapters(),
        }

        def write(folder: Path) -> None:
            self.write_model(self.loaded, folder / "model")
            save_state(folder / "state", self.tensors(), plain)

        self.checkpoints.pinned = self.watch.needs(self.checkpoints)
        size = size_of(self.tensors(), self.weights())
        try:
            self.checkpoints.save(self.step, write, {"step": self.step}, size=size, wait=required)
        except CheckpointError as error:
            self.warn("checkpoint", self.saves.missed(error, required=required))
        else:
            self.saves.saved()
            self.store.event("checkpoint", f"saved step {self.step}", step=self.step)

    def _adapters(self) -> dict[str, int]:
        """What scales the adapters that are trained, beside their weights."""
        lora, critic = self.config.lora, self.config.critic or CriticConfig()
        scales = {"lora.alpha": lora.alpha} if lora else {}
        beside = self.critic is not None and critic.kind_beside(lora) == "lora"
        return scales | ({"critic.alpha": critic.alpha} if beside else {})

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to the moment after the checkpoint's step; what was recorded later is dropped."""
        tensors, plain = load_state(checkpoint.state)
        take_over(self.trained_parameters(), tensors["policy"], checkpoint.path, "weights than this model")
        if self.critic:
            take_over(self.critic.parameters, tensors.get("critic", {}), checkpoint.path, "weights than this critic")
        require_same_adapters(plain.get("adapters", {}), self._adapters(), checkpoint.path)
        self.optimizer.restore(tensors["optimizer"])
        self.weigh.load_state_dict(plain["algorithm"])
        self.guards.load_state(plain["guards"])
        if "watch" in plain:  # checkpoints of versions without alarms have none
            self.watch.load_state(plain["watch"])
        self.step, self.num_tokens = checkpoint.step, plain["num_tokens"]
        if self.held and "held" in tensors:
            self.held.restore(tensors["held"], plain["published"])
        self.publish(self.step)
        self.store.truncate_after(self.step)
        self.seconds = math.fsum(record.get("time/step", 0.0) for record in self.metrics)
        self.evaluation, fault = self.store.read_evaluation()
        if fault:
            self.restore_evaluation(fault)

    def restore_evaluation(self, fault: str) -> None:
        """Go on without the file: the weights of now are never measured in place of those before training."""
        self.evaluation.pop("lost", None)
        if "baseline" in self.evaluation:
            self.store.record(EVALUATION, self.evaluation)
            self.warn("evaluation", f"{fault}: the measurement before training is taken from events.jsonl")
        else:
            self.warn("evaluation", f"{fault}: the measurement before training is lost, and nothing replaces it")


class Phases:
    """Seconds spent in each phase of a step, for the step line and the report."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.started = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin

    def metrics(self) -> dict[str, float]:
        whole = {"time/step": time.perf_counter() - self.started}
        return {f"time/{name}": seconds for name, seconds in self.seconds.items()} | whole
