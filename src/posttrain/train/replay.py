"""`replay`: train again from the records of a run, and show that the weights are the same bits.

The rollout files hold the sampled answers of each step, their policy versions, their rewards and their order. A step
that reads them computes the same as before, whatever schedule produced its groups. It needs no samplers, rewards,
judges or held-out data. Runs on given answers read their rows from the data again.

With changed settings, a replay answers a what-if question on the same data. It does not claim equal weights. It
measures the distance between its final weights and the run's.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch

from posttrain.algorithms import Algorithm
from posttrain.config import CriticConfig, RunConfig
from posttrain.data.split import read_auxiliary, read_split
from posttrain.errors import ConfigError
from posttrain.experience.assemble import pair_roles
from posttrain.experience.feed import Feed, StepData
from posttrain.experience.recorded import ReplayFeed
from posttrain.experience.sampled_pairs import FILE as PAIRS
from posttrain.models.compute import FILE as COMPUTE
from posttrain.models.compute import Compute, computed_on
from posttrain.rewards.model import find_model
from posttrain.store.checkpoint import Checkpoint, Checkpoints, save_state, version_of
from posttrain.store.run_store import RunStore
from posttrain.store.shards import read_state
from posttrain.train import same_data, same_model
from posttrain.train.differences import Compared, hash_of, moved_apart, named
from posttrain.train.guards import Guards
from posttrain.train.judges import Judges, Samplers
from posttrain.train.loop import train_step
from posttrain.train.memory import within_memory
from posttrain.train.publish import FiniteWeights
from posttrain.train.recorded_run import RecordedRun
from posttrain.train.replayed import Replay
from posttrain.train.setup import Policy, scoring_trainer
from posttrain.train.sources import SOURCES, Inputs, sampled_preferences
from posttrain.train.trainer import Trainer
from posttrain.types import Batch

FILE = "replay.json"
TAKEN_OVER = (COMPUTE, "references", PAIRS, "sampled/summary.json")
"""Files with decisions that the run made before its first step. A replay copies them into its own folder."""


def replay(
    run: str | PathLike[str],
    *,
    first: int | None = None,
    last: int | None = None,
    output: str | PathLike[str] | None = None,
    say: Callable[[str], None] = lambda line: None,
    **overrides: Any,
) -> Replay:
    """Train steps `first` to `last` of a run again and compare every bit with what the run recorded.

    By default it begins at the oldest checkpoint and ends at the last step on file. It writes into `output`, by default
    the first free RUN-replay-N, and never into the run's folder. `overrides` are settings as in `train`. They make the
    replay a what-if on the same data. `say` gets a line about each step. Raises a `PosttrainError` if a replay would
    mean nothing: with another version of torch, on another machine, with changed data, or if a rollout file or a
    checkpoint is missing or damaged.
    """
    recorded = RecordedRun.of(Path(fspath(run)), overrides)
    begin, end = recorded.range(first, last)
    whole = _Replaying(recorded, begin, end, say)
    with own_folder(recorded.folder, output) as store, within_memory(), threads_kept():
        return whole(store)


@contextmanager
def own_folder(run: Path, output: str | PathLike[str] | None) -> Iterator[RunStore]:
    """The folder of a replay. If the replay fails before its first step, the folder is removed again."""
    beside = (run.resolve().with_name(f"{run.resolve().name}-replay-{n}") for n in range(1, 1_000_000))
    folder = Path(output) if output is not None else next(path for path in beside if not path.exists())
    was_there = folder.exists()
    with RunStore.aside(folder) as store:
        for name in TAKEN_OVER:
            if (found := run / name).is_dir():
                shutil.copytree(found, folder / name)
            elif found.is_file():
                (folder / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(found, folder / name)
        try:
            yield store
        except BaseException:
            if not (was_there or (folder / "metrics.jsonl").exists()):
                shutil.rmtree(folder, ignore_errors=True)
            raise


@contextmanager
def threads_kept() -> Iterator[None]:
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


# --- the steps -------------------------------------------------------------------------------------------------------


class _Replaying:
    """One replay, from its start to its result."""

    def __init__(self, run: RecordedRun, first: int, last: int, say: Callable[[str], None]) -> None:
        self.run, self.first, self.last, self.say = run, first, last, say
        self.what_if = bool(run.changes)
        self.changed = run.changed(first) if self.what_if else []
        self.compared, self.notes = Compared(), list[str]()
        self.metrics: list[tuple[int, dict[str, float], dict[str, Any]]] = []
        self.apart: dict[int, float] = {}
        self.hashes: dict[int, dict[str, str]] = {}
        there = [step for step in run.checkpoints.steps() if first <= step <= last]
        self.checkpoints = {step: run.checkpoints.of(step) for step in there}
        """The checkpoints to compare. Damaged ones are refused before anything is computed."""
        self.began: dict[str, Any] = {}
        """The weights from which both the what-if and the run started."""

    def __call__(self, store: RunStore) -> Replay:
        found = self.run.start(self.first)
        start = "the model that the run started with" if found is None else f"the checkpoint of step {found.step}"
        own = Checkpoints(store.checkpoints, keep=1)
        for first, last in self.run.spans(self.first, self.last):
            trainer, feed = self.build(store, first, found)
            for step in range(first, last + 1):
                self.one_step(store, trainer, feed, step)
                if self.is_settled(step):
                    self.last = last = step
                    break
            found = self.save(own, trainer, last)
            if last == self.last:
                break
        result = Replay(
            run=self.run.folder,
            folder=store.folder,
            first=self.first,
            last=self.last,
            start=start,
            what_if=self.what_if,
            changed=self.changed,
            compared=self.compared,
            metrics=self.metrics,
            apart=self.apart,
            notes=self.notes,
        )
        store.record(FILE, result.to_json() | {"sha256": self.hashes})
        return result

    def is_settled(self, step: int) -> bool:
        """Can the replay end here? Once the weights differ, later steps show nothing new."""
        differs = bool(self.compared.differences) and not self.what_if
        return differs and (step in self.checkpoints or step > max(self.checkpoints, default=0))

    def build(self, store: RunStore, first: int, start: Checkpoint | None) -> tuple[Trainer, Feed]:
        """The trainer in its state before the step `first`, and its feed."""
        config = self.run.config(first)
        self.say(f"loading {config.model.path}")
        algorithm = config.algorithm.build()
        trainer, feed = build(config, algorithm, self.run, store, self.tell)
        self.require_same_start(config, trainer, from_model=start is None)
        self.require_same_place(trainer, start)
        if start is not None:
            tensors, plain = read_state(start.state)
            if self.what_if and first == self.first:
                tensors, plain = self.fitting(trainer, tensors, plain)
            trainer.restore(tensors, plain, start.path)
        if self.what_if and not self.began:
            self.began = {"policy": {name: one.detach().clone() for name, one in trainer.trained_parameters().items()}}
        return trainer, feed

    def one_step(self, store: RunStore, trainer: Trainer, feed: Feed, step: int) -> None:
        """Train one step without sampling and publishing, and compare every number with the run."""
        data = feed.take(step, step - 1)
        trainer.numbers.watch(data.names)
        batch, log = train_step(trainer, data.experience, step)
        trainer.publish(step)
        values, then = log.reduce(), self.run.metrics.get(step, {})
        self.metrics.append((step, values, then))
        store.metrics(step, values)
        self.compared.step(step, values, then)
        if isinstance(feed, ReplayFeed) and feed.recorded is not None and not self.what_if:
            self.compared.columns(step, *columns_of(data, batch, feed.recorded.rows))
        if step in self.checkpoints:
            self.compare_checkpoint(trainer, step)
        self.say(self.line(step, values, then))

    def line(self, step: int, now: Mapping[str, float], then: Mapping[str, Any]) -> str:
        """The line about a step: whether everything was the same, or both losses for a what-if."""
        other = sum(difference.step == step for difference in self.compared.differences)
        if self.what_if:
            losses = f"loss {now.get('loss', math.nan):.6g}, in the run {then.get('loss') or math.nan:.6g}"
            return f"step {step} of {self.last}: {losses}"
        beside = ", its checkpoint too" if step in self.checkpoints else ""
        return f"step {step} of {self.last}: " + (f"{other} differences" if other else f"the same{beside}")

    def compare_checkpoint(self, trainer: Trainer, step: int) -> None:
        then, plain = read_state(self.checkpoints[step].state)
        now = trainer.tensors(step)
        self.hashes[step] = {name: hash_of(tensor) for name, tensor in named(now)}
        self.compared.checkpoint(step, (now, then), (trainer.state(step), plain))
        if self.what_if:
            self.apart[step] = moved_apart(now, then, self.began)

    def save(self, own: Checkpoints, trainer: Trainer, step: int) -> Checkpoint:
        def write(folder: Path) -> None:
            trainer.write(trainer.loaded, folder / "model")
            save_state(folder / "state", trainer.tensors(step), trainer.state(step))

        return own.save(step, write, {"step": step, **computed_on(trainer.loaded.device)})

    def tell(self, kind: Any, sentences: Any) -> None:
        for sentence in sentences:
            self.say(f"{kind}: {sentence}")

    # --- reasons to refuse a replay ----------------------------------------------------------------------------------

    def require_same_start(self, config: RunConfig, trainer: Trainer, *, from_model: bool) -> None:
        role = "which the replay starts from" if from_model else same_model.role_of_start(config, trainer.algorithm)
        before = self.run.record(same_model.FILE)
        if before is None:
            return
        if role and before.get(same_model.MODEL) != same_model.start_key(trainer.loaded.model):
            raise same_model.other_model("model", config, self.run.folder, f", {role}")
        beside = same_model.keys_beside(config, trainer.loaded)
        changed = {name.partition(".")[0] for name in self.run.changes}
        unchanged = {section: key for section, key in beside.items() if section not in changed}
        same_model.check_beside(before, unchanged, config, self.run.folder)

    def require_same_place(self, trainer: Trainer, start: Checkpoint | None) -> None:
        """Raise ConfigError if versions or hardware would change the last bits. For a what-if it is only a note."""
        device = trainer.loaded.device
        if start is not None and device.type == "cpu" and "threads" in start.facts:
            torch.set_num_threads(int(start.facts["threads"]))
        here, found = {"ranks": 1, **computed_on(device)}, list[str]()
        for checkpoint in (*([start] if start is not None else []), *self.checkpoints.values()):
            now = {**versions(), **here}
            then = {**checkpoint.versions, **{name: checkpoint.facts.get(name) for name in here}}
            found += [
                f"{name}: {then[name]} up to step {checkpoint.step}, {now[name]} here"
                for name in now
                if then.get(name) is not None and then[name] != now[name]
            ]
        saved, chosen = Compute.read(self.run.folder / COMPUTE), trainer.loaded.compute
        if saved is not None and replace(saved, why="") != replace(chosen, why=""):
            found.append(f"how matrix products are computed: {saved.describe()} there, {chosen.describe()} here")
        if found and not self.what_if:
            raise ConfigError(
                given=f"the run was computed differently: {'; '.join(dict.fromkeys(found))}",
                allowed="the same versions, processor, threads and kernels, for bit-identical numbers",
                fix="Replay it in the same place. Or change a setting (train.learning_rate=1e-5): the replay is then a "
                "what-if and claims no equality.",
            )
        self.notes += [note for note in dict.fromkeys(found) if note not in self.notes]

    def fitting(self, trainer: Trainer, tensors: Mapping[str, Any], plain: Mapping[str, Any]) -> tuple[Any, Any]:
        """The saved state with the initial state of a changed algorithm or of a critic that the run did not have."""
        if any(change.startswith("algorithm.name") for change in self.changed):
            plain = {**plain, "algorithm": trainer.advantages.state_dict()}
        own = trainer.tensors(0)
        if ("critic" in own) != ("critic" in tensors):
            self.notes.append("the critic is not the run's critic, and the optimizer starts without moments")
            critic = {"critic": own["critic"]} if "critic" in own else {}
            tensors = {"policy": tensors["policy"], "optimizer": {}, **critic}
        return tensors, plain


def versions() -> dict[str, str]:
    """Versions of the libraries that compute, as checkpoints record them. It leaves out posttrain: a replay may test a
    new version of it. The build of torch is a part of `computed_on`."""
    return {name: version_of(name) for name in ("torch", "transformers")}


def columns_of(data: StepData, batch: Batch, rows: list[dict[str, Any]]) -> tuple[str, list[Any], list[Any]]:
    """(column, replayed, recorded), with one value per row: roles in pairs, or advantages."""
    if batch.chosen_B is not None:
        return "role", pair_roles(batch, data.groups), [row.get("role") for row in rows]
    assert batch.advantages_BT is not None, "an algorithm that learns from rewards has advantages"
    starts = [(len(row["prompt_ids"]), len(row["completion_ids"])) for row in rows]
    now = [batch.advantages_BT[b, start : start + length].tolist() for b, (start, length) in enumerate(starts)]
    return "advantages", now, [row["advantages"] for row in rows]


# --- a trainer without samplers ---------------------------------------------------------------------------------------


def build(
    config: RunConfig, algorithm: Algorithm, run: RecordedRun, store: RunStore, tell: Callable[..., None]
) -> tuple[Trainer, Feed]:
    """A trainer without samplers, rewards and judges, and its feed."""
    guards = Guards.of(config, store.evidence)
    critic = config.critic or CriticConfig()
    if critic.path is not None:  # the run's reward model is in the run's folder
        path = find_model(critic.path, run.folder)
        config = config.model_copy(update={"critic": critic.model_copy(update={"path": path})})
    if "scores" in algorithm.needs:
        rows = read_split(config.data, config.seed)
        trainer, feed, measure, _ = scoring_trainer(config, algorithm, rows, guards, store, tell, ExitStack())
        require_same_rows(config, run, feed, measure)
        return trainer, feed
    policy = Policy.of(config, algorithm, store.folder)
    if run.samples:
        feed = ReplayFeed(run.folder, pad_id=policy.loaded.pad_id, max_lag=config.train.max_lag)
    else:
        feed = given(config, policy, run, store)
    trainer, _ = policy.trainer(
        config,
        read_auxiliary(config.data, config.seed),
        numbers=guards.non_finite,
        publish=FiniteWeights(policy.loaded.model),
        say=lambda sentence: tell("warning", [sentence]),
    )
    return trainer, feed


def given(config: RunConfig, policy: Policy, run: RecordedRun, store: RunStore) -> Feed:
    """A feed of the data as the run read it. Pairs that the run sampled are on file."""
    read = SOURCES[policy.algorithm.data_kind]
    if config.sampled_pairs is not None:
        read = sampled_preferences
        if not (store.folder / PAIRS).is_file():
            raise ConfigError(
                given=f"{run.folder / PAIRS} is missing",
                allowed="the pairs that the run sampled before its first step",
                fix="Restore the file from a copy.",
            )
    source = read(
        Inputs(
            config=config,
            algorithm=policy.algorithm,
            rows=read_split(config.data, config.seed),
            loaded=policy.loaded,
            forward=policy.forward,
            samplers=Samplers.of(config, policy.loaded, published=False),
            judges=Judges(rewards=None, check=None),
            folder=store.folder,
            say=lambda sentence: None,
        )
    )
    require_same_rows(config, run, source.feed, source.measure)
    return source.feed


def require_same_rows(config: RunConfig, run: RecordedRun, feed: Feed, measure: Any) -> None:
    if any(name.split(".")[0] == "data" for name in run.changes):
        return
    before = run.record(same_data.FILE)
    if before is not None:
        same_data.require_same(before, feed, measure, config.data, run.folder)
