"""A run: its collaborators, its progress, and the records that it leaves in its folder."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.config.text import show
from posttrain.errors import CheckpointError
from posttrain.experience.assemble import pair_roles
from posttrain.experience.rollouts import rollout_table
from posttrain.files import NO_ROOM
from posttrain.models.compute import computed_on
from posttrain.report.lines import short_line
from posttrain.report.notebook import run_html
from posttrain.report.others import others_sentences
from posttrain.report.store import read_run
from posttrain.report.verdict import in_brief
from posttrain.report.writing import writing_sentences
from posttrain.shown import shown
from posttrain.store.checkpoint import Checkpoint, Checkpoints, DiskFull, SavePolicy, save_state, size_of
from posttrain.store.run_store import EVALUATION
from posttrain.train.respond import respond
from posttrain.train.schedule import learning_rate_at
from posttrain.train.sharded_state import save_sharded
from posttrain.watch import NOTHING_SEEN, Looked, Watch, nothing_to_watch

if TYPE_CHECKING:
    from posttrain.config import Resolved, RunConfig
    from posttrain.evaluate.measure import Measure
    from posttrain.experience.feed import Feed, StepData
    from posttrain.report.terminal import TerminalView
    from posttrain.store.run_store import RunStore
    from posttrain.store.timeline import Timeline
    from posttrain.train.guards import Guards
    from posttrain.train.trainer import Trainer
    from posttrain.types import Batch


@dataclass(repr=False)
class Run:
    """The result of `train` and `resume`; during training, the object that the loop works with."""

    resolved: Resolved
    store: RunStore
    view: TerminalView
    trainer: Trainer
    feed: Feed
    guards: Guards
    measure: Measure
    checkpoints: Checkpoints
    watch: Watch = field(default_factory=nothing_to_watch)
    """Detects that a reward is gamed, and mismatches between engines and trainer."""
    step: int = 0
    """Number of steps done, which is also the policy version."""
    num_tokens: int = 0
    """Prompt and completion tokens of all rows so far, including rows that were sampled and not trained."""
    seconds: float = 0.0
    """Seconds spent in steps so far, from metrics.jsonl."""
    evaluation: dict[str, Any] = field(default_factory=dict)
    """The content of evaluation.json."""
    stop_asked: int = 0
    """The signal that came during the final measurement; 0 for none. The run is done, and nothing that follows it is
    begun."""
    saves: SavePolicy = field(default_factory=SavePolicy)

    @property
    def config(self) -> RunConfig:
        return self.resolved.config

    @property
    def folder(self) -> Path:
        return self.store.folder

    def __fspath__(self) -> str:
        """The run's folder, so that functions that take a folder accept a run: `resume(run)`, `evaluate(run)`."""
        return str(self.folder)

    @property
    def reached(self) -> str:
        """The name of the setting whose limit ends the run here; empty while there are steps to do."""
        train = self.config.train
        limits = (
            ("train.steps", self.step, train.steps),
            ("train.stop_after_tokens", self.num_tokens, train.stop_after_tokens),
            ("train.stop_after_seconds", self.seconds, train.stop_after_seconds),
        )
        return next((name for name, spent, limit in limits if limit is not None and spent >= limit), "")

    @property
    def ending(self) -> str:
        """How many steps the run made and, if not all, which limit ended it and how far the schedule came."""
        if self.reached in ("", "train.steps"):
            return f"finished {self.step} steps"
        train = self.config.train
        limit = f"{self.reached} = {show(getattr(train, self.reached.removeprefix('train.')))}"
        said = f"finished {self.step} of {train.steps} steps: {limit} is reached"
        if train.schedule == "constant":
            return said
        rate = f"{learning_rate_at(self.step, train):.3g}"
        laid_out = f"train.schedule = {train.schedule} is laid out over train.steps = {train.steps}"
        return f"{said}. The last learning rate was {rate}, because {laid_out}"

    @property
    def model_path(self) -> Path | None:
        """The folder `model/` of the newest checkpoint, which `from_pretrained` opens."""
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
        """The verdict and the first plots, for a notebook."""
        return run_html(read_run(self.folder))

    def describe(self) -> dict[str, Any]:
        """The description of the run that is printed when it starts."""
        config = self.config
        trainer = self.trainer
        trained = sum(p.numel() for p in trainer.trained_parameters().values())
        rows = config.train.prompts_per_step * (config.sampling.group_size if self.feed.samples else 1)
        return {
            "run": str(self.folder) + (f", uploaded to {self.store.carrier.url}" if self.store.carrier.url else ""),
            "model": f"{config.model.path}, {trained:,} trained parameters, {trainer.loaded.compute.describe()}",
            **({"critic": trainer.critic.describe()} if trainer.critic else {}),
            "algorithm": trainer.algorithm.card.title + self._correction(),
            "data": self.feed.describe(),
            "step": f"{config.train.prompts_per_step} rows of the data"
            + (f" × {config.sampling.group_size} completions = {rows} rows" if self.feed.samples else "")
            + f", {config.train.updates_per_batch} optimizer step(s)",
            "steps": f"{config.train.steps}"
            + (f", continuing after step {self.step}" if self.step else "")
            + self._may_end_sooner(),
        }

    def _may_end_sooner(self) -> str:
        """The limits that may end the run before its last step, and what this means for its schedule."""
        train = self.config.train
        given = {
            "train.stop_after_tokens": train.stop_after_tokens,
            "train.stop_after_seconds": train.stop_after_seconds,
        }
        limits = [f"{name} = {show(limit)}" for name, limit in given.items() if limit is not None]
        if not limits:
            return ""
        over_all = f"; train.schedule = {train.schedule} is laid out over all {train.steps}"
        sooner = f", unless {' or '.join(limits)} ends the run sooner"
        return sooner + (over_all if train.schedule != "constant" else "")

    def _correction(self) -> str:
        """The correction in use, marked "(auto)" if `correction: auto` chose it."""
        applied, asked = self.trainer.algorithm.correction_name, self.config.algorithm.build().correction_name
        if applied in ("none", "auto"):
            return ""
        return f", correction {applied}" + (" (auto)" if asked == "auto" else "")

    # --- what a step leaves behind -----------------------------------------------------------------------------------

    def record_step(
        self, data: StepData, batch: Batch, metrics: dict[str, float], looked: Looked = NOTHING_SEEN
    ) -> None:
        """Write a line of metrics and the completions with their findings, and print a line on the terminal."""
        values = {**metrics, "num_tokens": self.num_tokens}
        self.store.metrics(self.step, values)
        if data.groups:
            table = rollout_table(
                self.step,
                data.groups,
                batch.advantages_BT,
                roles=None if batch.chosen_B is None else pair_roles(batch, data.groups),
                discarded=data.discarded,
                greedy=data.greedy,
                completion_mask_BT=data.experience.completion_mask_BT,
                columns=looked.columns,
                version=data.version,
                weights=self._weights(data),
            )
            self.store.rollouts(self.step, table)
            self.store.judgements(self.step, [*data.judgements, *looked.judgements])
            if self.view.show_samples and (self.step == 1 or self.step % 10 == 0):
                self.view.samples(self.step, table.slice(0, 2 * self.config.sampling.group_size).to_pylist())
        self.view.step({"step": self.step, **values}, self.config.train.steps)

    def _weights(self, data: StepData) -> list[float] | None:
        """The weights of the rewards; None if the step did not learn from rewards."""
        learned = getattr(data.experience, "reward_weights_K", None) is not None
        return [reward.weight for reward in self.config.rewards] if learned else None

    def warn(self, about: str, message: str) -> None:
        self.store.event("warning", message, step=self.step, about=about)
        self.view.event("warning", message)

    # --- measuring --------------------------------------------------------------------------------------------------

    def measure_model(self, name: str) -> None:
        """Evaluate the present weights; `name` is "baseline", "trained" or "step N"."""
        with self.store.timeline.span("trainer", "evaluate", of=name):
            measured = self.measure(self.folder / "evaluations", name)
        if name == "baseline":
            warning = self.watch.before_training(self.folder / "evaluations" / "baseline.jsonl")
            if warning is not None:
                self.warn("check", warning)
        if name in measured:
            self.view.evaluation(name, measured[name])
            self.store.event("evaluation", name, step=self.step, evaluation=measured[name])
        for sentence in [*writing_sentences(measured), *others_sentences(measured)] if name == "trained" else ():
            self.store.event("evaluation", sentence, step=self.step)
            self.view.event("evaluation", sentence)
        if measured and not name.startswith("step"):
            if name in measured and name == "trained" and "baseline" not in self.evaluation:
                measured.setdefault("lost", "the measurement before training is missing")
            if "lost" in measured:
                self.warn("evaluation", f"{measured['lost']}: the change from training is not measured row by row")
            self.evaluation = {**self.evaluation, **measured}
            self.store.record(EVALUATION, self.evaluation)
        if name in measured:
            respond(self, self.watch.evaluated(self.step, measured[name]), is_over=name == "trained")

    # --- saving and restoring ---------------------------------------------------------------------------------------

    def save(self, *, required: bool = False) -> bool:
        """Write this step's checkpoint. A failure is a warning; the third in a row, or a required one, is an error.

        Returns whether the checkpoint is there."""
        trainer = self.trainer
        plain = {
            "num_tokens": self.num_tokens,
            **trainer.state(self.step),
            "feed": self.feed.state(),
            "guards": self.guards.state(),
            "watch": self.watch.state(),
        }

        def write(folder: Path) -> None:
            trainer.write(trainer.loaded, folder / "model")
            if trainer.ranks.size > 1:
                save_sharded(trainer, folder / "state", self.step, plain)
            else:
                save_state(folder / "state", trainer.tensors(self.step), plain)

        self.checkpoints.pinned = self.watch.needs(self.checkpoints) | self.store.carrier.needs()
        size = size_of(trainer.tensors(self.step), trainer.weights())
        try:
            self._settle()
            facts = {"step": self.step, "ranks": trainer.ranks.size, **computed_on(trainer.loaded.device)}
            with self.store.timeline.span("trainer", "checkpoint", step=self.step):
                self.checkpoints.save(self.step, write, facts, size=size, wait=required)
        except CheckpointError as error:
            self.warn("checkpoint", self.saves.missed(error, required=required))
            return False
        self.saves.saved()
        self.store.event("checkpoint", f"saved step {self.step}", step=self.step)
        self.store.carrier.wake()
        return True

    def _settle(self) -> None:
        """Make the records durable. Raises CheckpointError, because a checkpoint needs the rows before it."""
        try:
            self.store.settle()
        except OSError as error:
            kind = DiskFull if error.errno in NO_ROOM else CheckpointError
            raise kind(
                given=f"the records before the checkpoint of step {self.step} could not be written to disk ({error}); "
                "older checkpoints are intact",
                allowed="a folder that can be written",
                fix="Repair that disk or free some space, or move the run folder to another disk; then "
                f"`posttrain resume {shown(self.folder)}`.",
            ) from error

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to the moment after the checkpoint's step and drop later records. Publishes nothing."""
        plain = self.trainer.restore_parts(checkpoint.state, checkpoint.path)
        self.guards.load_state(plain["guards"])
        warning = None
        if "watch" in plain:  # checkpoints of early versions have none
            warning = self.watch.load_state(plain["watch"], self.folder / "evaluations" / "baseline.jsonl")
        self.feed.load_state(plain.get("feed", {}))
        self.step, self.num_tokens = checkpoint.step, plain["num_tokens"]
        self.store.truncate_after(self.step)
        if warning is not None:
            self.warn("check", warning)
        if missing := sorted(set(range(1, self.step + 1)) - {record.get("step") for record in self.metrics}):
            self.warn(
                "metrics",
                f"metrics.jsonl lacks {len(missing)} of the {self.step} steps before this checkpoint, between "
                f"{missing[0]} and {missing[-1]}: plots, sums and limits of seconds leave them out",
            )
        self.seconds = math.fsum(record.get("time/step", 0.0) for record in self.metrics)
        self.evaluation, fault = self.store.read_evaluation()
        if fault:
            self.restore_evaluation(fault)

    def restore_evaluation(self, fault: str) -> None:
        """Continue without evaluation.json. The present weights never replace the baseline that is missing."""
        self.evaluation.pop("lost", None)
        if "baseline" in self.evaluation:
            self.store.record(EVALUATION, self.evaluation)
            self.warn("evaluation", f"{fault}: the measurement before training is taken from events.jsonl")
        else:
            self.warn("evaluation", f"{fault}: the measurement before training is lost and cannot be replaced")


class Phases:
    """Seconds spent in each phase of a step, for the step line and the report. The timeline records every phase."""

    def __init__(self, timeline: Timeline, step: int) -> None:
        self.timeline, self.step = timeline, step
        self.seconds: dict[str, float] = {}
        self.started = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            with self.timeline.span("trainer", name, step=self.step):
                yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin

    def metrics(self) -> dict[str, float]:
        whole = {"time/step": time.perf_counter() - self.started}
        return {f"time/{name}": seconds for name, seconds in self.seconds.items()} | whole
