"""`train` and `resume`: turn a config into a trained model, or into an error that says what went wrong."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

from posttrain.config import (
    REWARD_MODEL,
    ModelConfig,
    Resolved,
    RewardConfig,
    RunConfig,
    check,
    load_config,
    models_named,
    reward_model_config,
    to_yaml,
)
from posttrain.config.pipeline import MARK, holds_stages
from posttrain.config.urls import is_url, working_folder
from posttrain.data.given import where_the_run_is
from posttrain.data.split import read_auxiliary, read_split
from posttrain.errors import CheckpointError, ConfigError, GuardStop, PosttrainError, StorageError
from posttrain.evaluate.heldout_scores import in_words
from posttrain.evaluate.others import read_other_texts
from posttrain.models.named import resolve_model_path
from posttrain.models.reading import called, find_source
from posttrain.ranks.agreement import Ranks
from posttrain.ranks.environment import place_of_process
from posttrain.report.page import write_report
from posttrain.report.store import read_run
from posttrain.report.terminal import TerminalView
from posttrain.report.tracking.trackers import require
from posttrain.rewards.model import find_model
from posttrain.shown import shown
from posttrain.stopping import SIGNALS, ask_to_stop, stopped
from posttrain.store.checkpoint import Checkpoint, Checkpoints
from posttrain.store.fetching import folder_to_resume
from posttrain.store.folders import pipeline_around
from posttrain.store.run_store import RunStore, holds_run, never_began, require_run
from posttrain.train import objects, same_data, same_model, same_rewards, same_settings
from posttrain.train.before import BEFORE
from posttrain.train.carrying import carry, carry_last_words, refuse_url_of_ranks
from posttrain.train.changes import Changes
from posttrain.train.first_rows import show_first_rows
from posttrain.train.hosts import require_cluster
from posttrain.train.job import FinishedRun, follow, join, launch, leading
from posttrain.train.job_folder import remove_left
from posttrain.train.judges import Judges
from posttrain.train.launch import to_be_launched
from posttrain.train.loop import train_step
from posttrain.train.memory import within_memory
from posttrain.train.metrics import memory_metrics
from posttrain.train.optimizer import require_optimizer
from posttrain.train.respond import respond, untold
from posttrain.train.run import Phases, Run
from posttrain.train.setup import set_up
from posttrain.train.sizes import with_sizes
from posttrain.train.tracking import tracking
from posttrain.train.watchdog import Watchdog

MOSTLY_REJECTED = 0.5
"""Share of tokens that an off-policy correction may reject before a warning says so."""

LETS_GO = 150.0
"""Seconds to wait for the run's lock after its first rank was lost. Network storage keeps a lock for a while, and a
rank that only lost its connection needs time to end."""


def train(
    config: RunConfig | Mapping[str, Any] | str | Path, *, view: TerminalView | None = None, **overrides: Any
) -> Run | FinishedRun:
    """Train as `config` says (a file, a mapping or a RunConfig) and return the finished run.

    `overrides` are settings by section or dotted name: `train(config, seed=1, train={"steps": 5})`, or
    `train(config, **{"train.steps": 5})`. In a mapping and in overrides, `data` may hold rows, `rewards` may hold
    functions (as in `evaluate`), and `model` may be `(model, tokenizer)`: `train(config, data=rows,
    rewards=[my_reward])`. `posttrain.train.objects` has the details. Raises a `PosttrainError` whose `exit_code` tells
    the kind of failure. The run folder then holds `error.json` and everything written up to that moment.
    """
    if not isinstance(config, RunConfig) and holds_stages(config):
        raise ConfigError(
            given="stages, which make a pipeline",
            allowed="the settings of one run",
            fix="posttrain.train(...) takes both runs and pipelines.",
        )
    given = objects.resolve(config, overrides, lambda resolved: run_folder(resolved.config))
    return train_resolved(given.resolved, view=view, files=given.files)


def train_resolved(
    resolved: Resolved, *, view: TerminalView | None = None, files: Mapping[str, objects.Content] = MappingProxyType({})
) -> Run | FinishedRun:
    """Train as a config says that is already resolved. `files` are written into the folder of the run."""
    check(resolved.config)
    require(resolved.config.report_to)
    require_cluster(resolved.config)
    require_optimizer(resolved.config.train.optimizer)
    if to_be_launched(resolved.config):
        return launch(resolved, run_folder(resolved.config), view, files=files)
    ranks = join(resolved.config)
    if ranks.rank:
        return follow(ranks)
    with leading(ranks):
        return _train(resolved, view or TerminalView(quiet=True), files, ranks)


def _train(resolved: Resolved, view: TerminalView, files: Mapping[str, objects.Content], ranks: Ranks) -> Run:
    """Train in this process, which leads the ranks."""
    store = RunStore.create(run_folder(resolved.config), to_yaml(resolved))
    followed = tracking(store.folder, resolved.config.report_to, view)
    with followed, recording(store, view), within_memory(), ExitStack() as resources:
        carry(resolved.config, store, view, new=True)
        store.event(
            "start",
            f"{resolved.config.algorithm.name} on {resolved.config.model.path}",
            step=0,
            compares_groups=resolved.config.algorithm.build().group_size_needed > 1,
        )
        objects.put_files(files, store.folder)
        BEFORE.run(resolved.config, store, view)
        look_ahead(resolved.config, store.folder)
        stage = reward_model_stage(resolved.config, store, view)
        resolved = replace(resolved, config=with_sizes(resolved.config, store, view, ranks.size))
        run = set_up(resolved, store, view, resources, ranks)
        run.evaluation |= stage
        view.started(run.describe())
        return carry_out(run)


def resume(
    folder: str | PathLike[str],
    *,
    steps: int | None = None,
    devices: int | None = None,
    tensor: int | None = None,
    functions: Mapping[str, Any] | Sequence[Any] | None = None,
    view: TerminalView | None = None,
    restarted: str = "",
) -> Run | FinishedRun:
    """Continue a run from its newest intact checkpoint. On a CPU the result is bit-identical to an unstopped run.

    `folder` may be the run that `train` returned, or the URL of its output, from any machine. `steps` replaces the
    configured number of steps, also in the run's config.yaml. `devices` replaces the number of ranks, and `tensor` the
    number of ranks that share each matrix: the result is then the same up to rounding. With one device, a run leaves a
    cluster that it used for ranks only. `functions` are reward functions that were passed to `train` and that no file
    defines. Raises the errors of `train`.
    """
    objects.give_functions(functions)
    refuse_url_of_ranks(str(folder), place_of_process())
    folder = folder_to_resume(folder, partial((view or TerminalView(quiet=True)).event, "resume"))
    require_run(folder)
    changes = Changes.of(folder, steps, devices, tensor)
    settled = load_config(folder / "config.yaml", changes.overrides)
    if to_be_launched(settled.config):
        return launch(settled, folder, view, resumed={"steps": steps, "devices": devices, "tensor": tensor})
    ranks = join(settled.config)
    if ranks.rank:
        return follow(ranks)
    with leading(ranks):
        return _resume(folder, changes, view or TerminalView(quiet=True), restarted, ranks)


def _resume(folder: Path, changes: Changes, view: TerminalView, restarted: str, ranks: Ranks) -> Run:
    """Resume in this process, which leads the ranks."""
    store = RunStore.open(folder, patience=LETS_GO if restarted else 0.0)
    with ExitStack() as unresumed:
        unresumed.push(store)  # if the run cannot be resumed, its folder stays unchanged
        resolved, checkpoint = resumable(store, changes)
        require(resolved.config.report_to)
        require_optimizer(resolved.config.train.optimizer)
        carry(resolved.config, store, view, new=False)
        unresumed.pop_all()
    remove_left(folder)
    followed = tracking(store.folder, resolved.config.report_to, view)
    with followed, recording(store, view), within_memory(), ExitStack() as resources:
        stage = reward_model_stage(resolved.config, store, view)
        resolved = replace(resolved, config=with_sizes(resolved.config, store, view, ranks.size))
        run = set_up(resolved, store, view, resources, ranks)
        if restarted:
            run.warn("ranks", f"{restarted}; the job continues from its newest checkpoint")
        if checkpoint is None:  # the run was killed before it wrote a checkpoint
            store.truncate_after(0)
            run.evaluation |= stage
        else:
            same_data.check_same(run)
            same_model.check_same(run)
            run.restore(checkpoint)
            run.evaluation = stage | run.evaluation
            same_rewards.point_out(run)
            same_settings.point_out(run)
            for damage in checkpoint.skipped:
                run.warn("checkpoint", f"skipped a damaged checkpoint: {damage}")
        if changes:
            store.config(changes.written_into((store.folder / "config.yaml").read_text(encoding="utf-8")))
        view.started(run.describe())
        if run.reached == "train.steps":
            again = f"; `posttrain resume {shown(store.folder)} --steps N` trains more"
            more = "" if pipeline_around(store.folder) else again
            run.warn("resume", f"all {run.step} steps are done{more}")
        elif run.reached:
            run.warn("resume", f"nothing is left to train: step {run.step} reached {run.reached}")
        return carry_out(run, restored=checkpoint is not None)


def look_ahead(config: RunConfig, folder: Path) -> None:
    """Find errors in the data and in the user's functions before the run trains its reward model."""
    if config.reward_model is not None:
        read_inputs(config, folder)


def read_inputs(config: RunConfig, folder: Path) -> None:
    """Check that a run's data, its reward model's data and its reward functions can be loaded.

    It looks for the model files, but does not read them."""
    find_models(config, folder)
    read_split(config.data, config.seed)
    read_auxiliary(config.data, config.seed)
    read_other_texts(config.evaluation)
    if config.reward_model is not None:
        stage = reward_model_config(config, folder).config
        read_split(stage.data, stage.seed)
    with ExitStack() as resources:
        Judges.of(config.model_copy(update=without_models(config)), folder, resources)


def without_models(config: RunConfig) -> dict[str, Any]:
    """The rewards and checks that need no model, neither as their scorer nor as their gate.

    A reward of weight 0 may be the gate of a model. It gets weight 1 here, where nothing is summed."""
    models = {entry.metric_name for entry in config.rewards if entry.model is not None}
    rewards = [entry.model_copy(update={"weight": 1.0}) for entry in without_rewards(config.rewards, models)]
    return {"rewards": rewards, "check": [entry for entry in config.check if entry.model is None]}


def without_rewards(rewards: Sequence[RewardConfig], names: Collection[str]) -> list[RewardConfig]:
    """The rewards except those of these names and those behind their gates, also through other gates."""
    missing = set(names)
    for _ in rewards:  # a chain of gates is at most as long as the list
        missing |= {one.metric_name for one in rewards if one.gate is not None and one.gate.label in missing}
    return [one for one in rewards if one.metric_name not in missing]


def find_models(config: RunConfig, folder: Path) -> None:
    """Raise ModelError for a missing or incomplete model.

    Models of earlier stages do not exist yet. Whether the Hub has a model shows only when the run loads it."""
    for setting, path in models_named(config):
        if path.startswith(MARK):
            continue
        if setting.split(".")[0] not in ("model", "reference", "teacher"):  # may be a run folder
            path = find_model(path, folder)
        model = config.model if setting == "model.path" else ModelConfig(path=path)
        with called(setting):
            find_source(resolve_model_path(model, config.seed))


def reward_model_stage(config: RunConfig, store: RunStore, view: TerminalView) -> dict[str, Any]:
    """Train the configured reward model, or resume its training with the present settings. A finished one stays
    unchanged, and a warning names the settings that have changed since.

    Returns its entry for evaluation.json, `{"reward_model": {"baseline": ..., "trained": ...}}`, or an empty mapping.
    """
    if config.reward_model is None:
        return {}
    resolved = reward_model_config(config, store.folder)
    folder = store.folder / REWARD_MODEL
    if read_run(folder).status == "finished":
        point_out_ignored(resolved.config, config.reward_model, store, view)
    else:
        part = ", ".join(filter(None, [view.part, REWARD_MODEL]))
        own = TerminalView(view.stream, quiet=view.quiet, part=part)
        view.event(REWARD_MODEL, f"training it in {folder}")
        try:
            resume_stage(folder, resolved, own) if holds_run(folder) else train_resolved(resolved, view=own)
        except BaseException as error:
            error.__notes__ = []  # they name the inner folder; the outer run says how to continue
            raise
    measured = dict(read_run(folder).evaluation)
    if "trained" in measured:
        text = in_words(measured["trained"])
        store.event("evaluation", f"{REWARD_MODEL}: {text}")
        view.event(REWARD_MODEL, text)
    return {REWARD_MODEL: measured}


def resume_stage(folder: Path, resolved: Resolved, view: TerminalView) -> None:
    """Resume the training of a reward model with the settings that the run around it has now."""
    newest = Checkpoints(folder / "checkpoints", resolved.config.checkpoint.keep).newest()
    steps = resolved.config.train.steps
    if newest is not None and newest.step > steps:
        raise ConfigError(
            given=f"{REWARD_MODEL}.train.steps = {steps}, but the reward model has done {newest.step} steps",
            allowed=f"at least {newest.step}",
            fix=f"Set {REWARD_MODEL}.train.steps = {newest.step} in {shown(folder.parent / 'config.yaml')}.",
        )
    with RunStore.open(folder) as store:
        store.config(to_yaml(resolved))
    resume(folder, view=view)


def point_out_ignored(now: RunConfig, section: Mapping[str, Any], store: RunStore, view: TerminalView) -> None:
    """Warn of settings in the section `reward_model` that differ from those with which the finished one was trained."""
    try:
        trained = load_config(store.folder / REWARD_MODEL / "config.yaml").config
    except PosttrainError:  # an earlier version has written it
        return
    changed = same_settings.changes(same_settings.facts_of(trained), same_settings.facts_of(now))
    own = [change for change in changed if re.split(r"[. ]", change)[0] in section]  # others are changes of the run
    if own:
        told = same_settings.in_brief([f"{REWARD_MODEL}.{change}" for change in own])
        text = f"without effect, because the reward model is trained already: {told}. A new run trains another one"
        store.event("warning", text, about="settings")
        view.event("warning", text)


def resumable(store: RunStore, changes: Changes) -> tuple[Resolved, Checkpoint | None]:
    """The config and the checkpoint from which a run continues. Changes nothing on disk."""
    resolved = load_config(store.folder / "config.yaml", changes.overrides)
    data = where_the_run_is(resolved.config.data, store.folder)
    resolved = replace(resolved, config=resolved.config.model_copy(update={"data": data}))
    check(resolved.config)
    require_cluster(resolved.config)
    checkpoint = Checkpoints(store.checkpoints, resolved.config.checkpoint.keep).newest()
    if checkpoint is not None and checkpoint.step > resolved.config.train.steps:
        raise ConfigError(
            given=f"train.steps = {resolved.config.train.steps}, but the run has done {checkpoint.step} steps",
            allowed=f"at least {checkpoint.step}",
            fix=f"Set --steps to more than {checkpoint.step} to train further.",
        )
    return resolved, checkpoint


def carry_out(run: Run, *, restored: bool = False) -> Run:
    """Carry a run from its current step to its end: baseline, training steps, final measurement.

    `restored`: the run continues from weights that the sampler does not have yet.
    """
    config = run.config
    run.view.compares_groups = run.trainer.algorithm.group_size_needed > 1
    same_data.tell_of_rows_left_out(run)
    if run.step == 0:
        show_first_rows(run)
        same_data.put_on_file(run)
        same_model.put_on_file(run)
        same_settings.put_on_file(run)
        if "baseline" not in run.evaluation:  # otherwise the rewards on file judged the baseline
            same_rewards.put_on_file(run)
    with Watchdog(run.store, config.guards.stalled_minutes), finishing_steps(run) as stop:
        with stop.only_after("" if run.step else "the measurement of the baseline"):
            before_the_steps(run, restored)
        take_steps(run, stop)
        run.view.begins("measuring the trained model on held-out rows")
        with stop.only_after("the measurement of the trained model, with which the run is complete"):
            run.measure_model("trained")
        run.stop_asked = stop.asked
    run.store.event("end", run.ending, step=run.step)
    if config.report:
        write_report(run.folder)
    run.store.carrier.finish()
    run.view.finished(run.summary())
    return run


def before_the_steps(run: Run, restored: bool) -> None:
    """Rehearse a step, publish restored weights, measure the baseline and save it, or catch up with an evaluation."""
    if not run.reached:
        run.trainer.rehearse(run.feed.longest())
    if restored:  # after the rehearsal, because a server on the trainer's GPU starts now and takes memory
        run.trainer.publish(run.step)
    if run.step == 0 and "baseline" not in run.evaluation:  # only the first weights are a baseline
        run.view.begins("measuring the baseline on held-out rows")
        run.measure_model("baseline")
    if run.step == 0:
        run.save(required=True)  # shows that a checkpoint can be written, before training costs anything
    catch_up(run)


def take_steps(run: Run, stop: Stop) -> None:
    """Train until the run has reached its end, or until a stop is asked for. There is a checkpoint of where it begins.

    A stop that comes outside of a step begins none if the checkpoint of the last step is there."""
    config, saved = run.config, True
    while True:
        if stop.asked and saved:
            when = f"after step {run.step}" if run.step else "before the first step"
            measures = f"; `posttrain eval {shown(run.folder)}` measures it" if run.step else ""
            raise stopped(stop.asked, f"stopped {when}, with a checkpoint{measures}")
        if run.reached:
            return
        with stop.only_after("this step, with a checkpoint"):
            one_step(run)
        last, saved = bool(run.reached), False
        if last or stop.asked or due(config.checkpoint.every, run.step):
            saved = run.save(required=bool(last or stop.asked))
        if last and run.reached != "train.steps":
            run.view.event("end", run.ending)
        if not last and not stop.asked and due(config.evaluation.every, run.step):
            after = "" if saved else " and one more step"
            with stop.only_after(f"the measurement of step {run.step}{after}, with a checkpoint"):
                run.measure_model(f"step {run.step}")


def catch_up(run: Run) -> None:
    """Finish the evaluation of the step at which a run is resumed: it comes after the step's checkpoint.

    If the result is on file, the run does not measure again. It repeats an alarm only if a kill came before the alarm
    was reported, or if alarms.on_alarm says to stop.
    """
    name, evaluation = f"step {run.step}", run.config.evaluation
    if run.step == 0 or run.reached or not due(evaluation.every, run.step):
        return
    measured = run.store.read_evaluation_of(name)
    if measured is None:
        run.measure_model(name)
        return
    alarms = run.watch.evaluated(run.step, measured)
    if run.config.alarms.on_alarm == "stop" or untold(run, alarms):
        respond(run, alarms)


def one_step(run: Run) -> None:
    """Take experience, learn from it, publish the weights and record the step."""
    step, trainer = run.step + 1, run.trainer
    phases = Phases(run.store.timeline, step)
    data = run.feed.take(step, run.step)
    for warning in run.guards.observe(step, data):
        run.warn("guard", warning)
    run.watch.before_update(data.groups, run.step)
    with phases.phase("train"):
        batch, log = train_step(trainer, data.experience, step)
    for warning in run.guards.observe_update(step, log.reduce().get("grad_norm")):
        run.warn("guard", warning)
    with phases.phase("publish"):
        log.add(trainer.publish(step))
    if (rejected := log.reduce().get("is/masked_fraction", 0.0)) > MOSTLY_REJECTED:
        share = f"{rejected:.0%} of the trained tokens"
        run.warn(
            "correction", f"step {step}: algorithm.correction rejects {share}; the model learns nothing from these"
        )
    run.step = step
    run.num_tokens += data.num_tokens
    log.add(data.metrics)
    log.add(memory_metrics())
    seen = run.watch.look(data.groups, step)
    if seen.warning:
        run.warn("check", seen.warning)
    metrics = {**log.reduce(), **seen.metrics, **data.seconds, **phases.metrics()}
    run.seconds += metrics["time/step"]
    alarms, gauges = run.watch.observe(step, metrics)
    run.record_step(data, batch, metrics | gauges, seen)
    respond(run, alarms)


def due(every: int, step: int) -> bool:
    return every > 0 and step % every == 0


def run_folder(config: RunConfig) -> Path:
    """`output`, or the first runs/<model>-<algorithm>-<n> that is free or whose run never began."""
    if config.output is not None:
        return working_folder(config.output) if is_url(config.output) else Path(config.output)
    name = Path(config.model.path).name.replace(":", "-")
    stem = f"{name}-{config.algorithm.name}"
    taken = {p.name for p in Path("runs").glob(f"{stem}-*") if not never_began(p)}
    return Path("runs") / next(f"{stem}-{n}" for n in range(1, len(taken) + 2) if f"{stem}-{n}" not in taken)


@contextmanager
def recording(store: RunStore, view: TerminalView) -> Iterator[None]:
    """Record the error that ends a run (error.json, an event), and note on it where the run is and how to continue."""
    try:
        with store:
            try:
                yield
            except BaseException as error:
                with suppress(PosttrainError):  # a full disk must not hide the first error
                    store.error(error)
                view.event("error", str(error) or type(error).__name__)
                if store.has_begun:
                    with suppress(Exception):  # a page about the failure must not become the failure
                        write_report(store.folder)
                error.add_note(how_to_go_on(store, error))
                carry_last_words(store, error)
                raise
    finally:
        view.close()


def how_to_go_on(store: RunStore, error: BaseException) -> str:
    """The note that tells how to continue a failed run."""
    folder = store.folder
    if not store.has_begun:
        return f"Nothing was trained. {folder}/error.json has the details; you can use the folder again."
    if isinstance(error, CheckpointError | StorageError) or getattr(error, "is_lasting", False):  # they say what to do
        return f"The run is in {folder}."
    change = ", in which they can be changed" if isinstance(error, GuardStop) else ""
    url = store.carrier.url
    return (
        f"The run is in {folder}{f' and at {url}' if url else ''}; `posttrain resume {shown(url or folder)}` continues "
        f"it from its newest checkpoint, with the settings of {folder}/config.yaml{change}."
    )


@dataclass
class Stop:
    """The stop that Ctrl-C or SIGTERM asks for, and what the run finishes first."""

    asked: int = 0
    """The first signal; 0 for none."""
    after: str = ""
    """What the run is doing and would finish; empty between two such parts."""

    @contextmanager
    def only_after(self, part: str) -> Iterator[None]:
        """Say of a signal that comes in this context that the run stops after this part."""
        self.after = part
        yield
        self.after = ""

    def __str__(self) -> str:
        when = f"after {self.after}" if self.after else "before the next step, with a checkpoint"
        return f"Stopping {when}. Press Ctrl-C again to stop now."


@contextmanager
def finishing_steps(run: Run) -> Iterator[Stop]:
    """Stop after the current step and save at the first Ctrl-C (or SIGTERM), and immediately at the second.

    The KeyboardInterrupt that ends the run carries the exit code of the first signal."""
    stop = Stop()

    def note(number: int, frame: FrameType | None) -> None:
        if stop.asked:
            raise stopped(stop.asked)
        stop.asked = number
        ask_to_stop()
        run.view.event("warning", str(stop))

    try:
        before = {number: signal.signal(number, note) for number in SIGNALS}
    except ValueError:  # not in the main thread: the caller handles signals
        before = {}
    try:
        yield stop
    except KeyboardInterrupt as end:
        if stop.asked:
            vars(end)["exit_code"] = 128 + stop.asked
        raise
    finally:
        ask_to_stop(False)
        for number, handler in before.items():
            signal.signal(number, handler)
