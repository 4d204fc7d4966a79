"""Runs one stage of a pipeline: proves the models that it receives, trains or resumes its run, and saves the
description of the model that it hands over.

A stage that has begun keeps its settings. If you edit `pipeline.yaml` or move the folder, the run's config.yaml follows
only in the paths of models from earlier stages and in a larger number of steps.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.config import Resolved, load_config, saved_tree, to_yaml
from posttrain.config.pipeline import Stage
from posttrain.config.text import dotted, leaves
from posttrain.errors import ConfigError, PosttrainError
from posttrain.files import write_durably
from posttrain.pipeline.handover import HandOver, Makes, describe, describe_saved, receive
from posttrain.pipeline.store import PipelineStore
from posttrain.report.store import read_run
from posttrain.report.terminal import TerminalView
from posttrain.stopping import stopped
from posttrain.store.folders import SETTINGS
from posttrain.store.run_store import holds_run
from posttrain.train import api
from posttrain.train.job import FinishedRun

STEPS = "train.steps"


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """The result of a finished stage."""

    name: str
    algorithm: str
    makes: Makes
    folder: Path
    """The folder of the stage's run."""
    model_path: Path
    """The trained model: a folder that transformers can open."""
    evaluation: Mapping[str, Any]
    """The content of evaluation.json: baseline, trained, and their comparison."""
    received: Mapping[str, Any]
    """Proofs, by setting, that the model there is the one that an earlier stage has trained."""


Done = Mapping[str, StageResult]
"""Results of the earlier stages, by name."""


def finished(stage: Stage, store: PipelineStore, done: Done) -> StageResult | None:
    """The result of a stage that has finished before, or None. It describes the model if a kill prevented that.

    Raises ConfigError if the stage has other settings now.
    """
    folder = store.folder / stage.folder
    run = read_run(folder)
    if run.status != "finished":
        return None
    _check_unchanged(stage, _resolved(stage, folder, done), store, done, may_grow=False)
    checkpoint = _last_checkpoint(folder)
    record = store.handover(stage.folder)
    if not record.exists():
        who = f"stage {stage.name} has lost what it trained"
        describe_saved(checkpoint, stage.config.model, makes=stage.makes, who=who).write(record)
    received = store.update(stage, status="finished", model=store.place(checkpoint / "model")).get("received", {})
    return _result(stage, folder, checkpoint, run.evaluation, received)


def train_stage(stage: Stage, store: PipelineStore, view: TerminalView, done: Done) -> StageResult:
    """Prove the hand-overs, train or resume the run, and describe the model that it hands over."""
    folder = store.folder / stage.folder
    resolved = _resolved(stage, folder, done)
    begun = holds_run(folder)
    if begun:
        _check_unchanged(stage, resolved, store, done, may_grow=True)
    else:
        store.handover(stage.folder).unlink(missing_ok=True)  # left by a run that was removed to train it again
    store.update(stage, status="training", algorithm=stage.config.algorithm.name)
    received = _receive(stage, store, view, done)
    part = f"stage {stage.name}"
    own = TerminalView(view.stream, quiet=view.quiet, show_samples=view.show_samples, part=part)
    with named(stage):
        if begun:  # paths of the proven models, which may have moved since the run began
            write_durably(folder / "config.yaml", to_yaml(resolved).encode())
        run = api.resume(folder, view=own) if begun else api.train_resolved(resolved, view=own)
    checkpoint = _last_checkpoint(folder)
    if isinstance(run, FinishedRun):  # the weights are not in this process
        made = describe_saved(checkpoint, stage.config.model, makes=stage.makes, who=f"stage {stage.name}")
    else:
        made = describe(run.trainer.loaded, run.step, makes=stage.makes)
    made.write(store.handover(stage.folder))
    evaluation, stop_asked = run.evaluation, run.stop_asked
    del run
    gc.collect()  # free the model and its optimizer before the next ones are loaded
    store.update(stage, status="finished", model=store.place(checkpoint / "model"))
    if stop_asked:
        raise stopped(stop_asked, f"stopped after stage {stage.name}, which is complete")
    return _result(stage, folder, checkpoint, evaluation, received)


@contextmanager
def named(stage: Stage) -> Iterator[None]:
    """Prefix errors with the stage's name, and drop their notes: the pipeline says how to continue."""
    try:
        yield
    except BaseException as error:
        error.__notes__ = []
        if isinstance(error, PosttrainError):
            error.given = f"stage {stage.name}: {error.given}"
            error.args = (f"stage {stage.name}: {error}",)
        raise


def _resolved(stage: Stage, folder: Path, done: Done) -> Resolved:
    """The settings of the stage's run, with its folder as output and the present paths of earlier stages' models."""
    linked = stage.with_models({name: str(done[name].model_path) for name in stage.uses.values()})
    config = linked.config.model_copy(update={"output": str(folder)})
    return Resolved(config=config, origins={**linked.origins, "output": "pipeline"})


def _check_unchanged(stage: Stage, now: Resolved, store: PipelineStore, done: Done, *, may_grow: bool) -> None:
    """Raise ConfigError with the names of the settings that changed since the stage began.

    `may_grow`: the number of steps may have grown, because the stage is not finished.
    """
    file = store.folder / stage.folder / "config.yaml"
    then, wanted = ({dotted(p): v for p, v in leaves(saved_tree(c))} for c in (load_config(file).config, now.config))
    changed = {name for name in then.keys() | wanted.keys() if then.get(name) != wanted.get(name)} - {"output"}
    if may_grow and then[STEPS] < wanted[STEPS]:
        changed.discard(STEPS)
    proofs = store.entry(stage).get("received", {})
    for setting, name in stage.uses.items():
        digest = HandOver.read(store.handover(done[name].folder.name)).digest
        began_with = proofs.get(setting, {}).get("sha256", digest)
        same = began_with == digest and _within(str(then.get(setting))) == _within(wanted[setting])
        changed = changed - {setting} if same else changed | {setting}
    if changed:
        raise ConfigError(
            given=f"stage {stage.name} has begun with other settings: {', '.join(sorted(changed))} of {file} and of "
            f"{store.folder / SETTINGS} differ",
            allowed=f"the same in both{'; train.steps may grow' if may_grow else ', because the stage is finished'}",
            fix="Edit one of the two files so that they agree. Or, to train these stages again, remove the "
            f"folder {store.folder / stage.folder} and the folders of the stages that build on it, and resume.",
        )


def _within(model: str) -> tuple[str, ...]:
    """The path of a stage's checkpoint inside the pipeline, wherever the pipeline is.

    >>> _within("runs/p-1/01-sft/checkpoints/step-000003/model")
    ('01-sft', 'checkpoints', 'step-000003', 'model')
    """
    return Path(model).parts[-4:]


def _receive(stage: Stage, store: PipelineStore, view: TerminalView, done: Done) -> dict[str, Any]:
    """Prove every model that this stage gets from an earlier one; returns the proofs by setting."""
    proofs: dict[str, Any] = {}
    for name in dict.fromkeys(stage.uses.values()):
        giver = done[name]
        checkpoint = giver.model_path.parent
        promised = HandOver.read(store.handover(giver.folder.name))
        who = f"stage {stage.name} does not receive the model that stage {name} has trained"
        proof = receive(checkpoint, promised, stage.config.model, makes=giver.makes, who=who)
        proofs[name] = {"stage": name, "checkpoint": store.place(checkpoint), **proof}
        shown = f"{proof['weights_compared']} weights equal, largest difference {proof['largest_difference']:.2g}"
        view.event("hand-over", f"the model of stage {name}: {shown}")
    received = {setting: proofs[name] for setting, name in stage.uses.items()}
    store.update(stage, received=received)
    return received


def _last_checkpoint(folder: Path) -> Path:
    """The newest checkpoint, intact or not, because no other may be handed over."""
    run = read_run(folder)
    return run.checkpoint(run.checkpoint_steps[-1] if run.checkpoint_steps else 0)


def _result(
    stage: Stage, folder: Path, checkpoint: Path, evaluation: Mapping[str, Any], received: Mapping[str, Any]
) -> StageResult:
    return StageResult(
        name=stage.name,
        algorithm=stage.config.algorithm.name,
        makes=stage.makes,
        folder=folder,
        model_path=checkpoint / "model",
        evaluation=dict(evaluation),
        received=dict(received),
    )
