"""A pipeline at work: its stages one after the other, each an ordinary run in a folder of its own.

    OUTPUT/
      pipeline.yaml      all settings of all stages; `posttrain resume OUTPUT` reads them
      pipeline.json      how far it is: status, model and hand-over proofs of each stage
      01-sft/ 02-dpo/    the runs
      handover/          what each stage handed over, see `handover.py`
      export/            the exported model, where one is asked for
      report.html        the stages side by side

Data and reward functions of all stages are looked at before the first one trains. Killed at any moment and resumed, a
pipeline is the one that was never killed: finished stages stay, the one that was interrupted resumes like any run.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from posttrain.config import Resolved
from posttrain.config_pipeline import PipelineConfig, Stage, holds_stages, notes, read_pipeline, to_yaml
from posttrain.errors import ConfigError, GuardStop, PosttrainError
from posttrain.report.pipeline_page import write_pipeline_report
from posttrain.report.spans import show_span
from posttrain.report.store import read_run
from posttrain.report.terminal import TerminalView
from posttrain.report.verdict import verdict
from posttrain.train import api
from posttrain.train.handover import HandOver, describe, describe_saved, receive
from posttrain.train.pipeline_store import SETTINGS, PipelineStore
from posttrain.train.run import Run
from posttrain.train.store import holds_run


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """A stage that is done."""

    name: str
    algorithm: str
    folder: Path
    """Of its run."""
    model_path: Path
    """What it trained: a folder that transformers opens."""
    evaluation: Mapping[str, Any]
    """Its evaluation.json: baseline, trained, and what compares them."""
    received: Mapping[str, Any]
    """Setting -> proof that the model there is the one that an earlier stage has trained."""


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """What `train` and `resume` return for a file with stages."""

    folder: Path
    stages: tuple[StageResult, ...]
    model_path: Path | None
    """The last policy; None where only reward models were trained."""
    export: Path | None
    """Where the last policy was exported to."""

    @property
    def evaluation(self) -> dict[str, Any]:
        """Name of each stage -> its evaluation."""
        return {stage.name: stage.evaluation for stage in self.stages}

    def summary(self) -> dict[str, Any]:
        report = self.folder / "report.html"
        return {
            "folder": str(self.folder),
            "model_path": str(self.model_path) if self.model_path else None,
            "export": str(self.export) if self.export else None,
            "report": str(report) if report.exists() else None,
            "stages": [
                {
                    "name": stage.name,
                    "algorithm": stage.algorithm,
                    "folder": str(stage.folder),
                    "model_path": str(stage.model_path),
                    "received": stage.received,
                    "evaluation": stage.evaluation,
                }
                for stage in self.stages
            ],
        }


def start(config: Any, *, view: TerminalView | None = None, **overrides: Any) -> Run | Pipeline:
    """`posttrain.train`: a run, or a pipeline where the file or mapping has `stages`. See `posttrain.train.api.train`.

    Overrides of a pipeline: see `posttrain.config_pipeline.read_pipeline`.
    """
    if holds_stages(config):
        return train_pipeline(read_pipeline(config, overrides), view=view)
    return api.train(config, view=view, **overrides)


def go_on(folder: str | Path, *, steps: int | None = None, view: TerminalView | None = None) -> Run | Pipeline:
    """`posttrain.resume`: of a run or of a pipeline, told by its folder."""
    if not (Path(folder) / SETTINGS).is_file():
        return api.resume(folder, steps=steps, view=view)
    if steps is not None:
        raise ConfigError(
            given=f"--steps {steps} for the pipeline {folder}",
            allowed="no number of steps: each stage has its own",
            fix=f"`posttrain resume {folder}` finishes it.",
        )
    return resume_pipeline(folder, view=view)


def train_pipeline(config: PipelineConfig, *, view: TerminalView | None = None) -> Pipeline:
    """Train all stages. Raises as `train` does; the folder then holds everything up to that moment."""
    folder = pipeline_folder(config)
    view = view or TerminalView(quiet=True)
    store = PipelineStore.create(folder, to_yaml(config, str(folder)), config.stages)
    with _recording(store, view):
        for note in notes(config):
            view.event("warning", note)
        look_ahead(config, folder)
        return _carry_out(config, store, view)


def resume_pipeline(folder: str | PathLike[str], *, view: TerminalView | None = None) -> Pipeline:
    """Go on with a pipeline; one that is finished stays as it is."""
    folder = Path(folder)
    config = read_pipeline(folder / SETTINGS)
    view = view or TerminalView(quiet=True)
    store = PipelineStore.open(folder, config.stages)
    with _recording(store, view):
        look_ahead(config, folder)
        return _carry_out(config, store, view)


def pipeline_folder(config: PipelineConfig) -> Path:
    """`output`, or the first free runs/<name of the file>-<n>."""
    if config.settings.output is not None:
        return Path(config.settings.output)
    stem = Path(config.source).stem if config.source else "pipeline"
    taken = {path.name for path in Path("runs").glob(f"{stem}-*")}
    return Path("runs") / next(f"{stem}-{n}" for n in range(1, len(taken) + 2) if f"{stem}-{n}" not in taken)


def look_ahead(config: PipelineConfig, folder: Path) -> None:
    """Data and reward functions of stages that are not done are found, read and imported; the first fault is raised."""
    for stage in config.stages:
        if read_run(folder / stage.folder).status != "finished":
            with _named(stage):
                api.read_inputs(_without_stages(stage), folder / stage.folder)


def _without_stages(stage: Stage) -> Any:
    """Its settings without what scores by a model that is not trained yet."""
    waiting = {".".join(setting.split(".")[:2]) for setting in stage.uses}
    entries = {
        section: [e for place, e in enumerate(getattr(stage.config, section)) if f"{section}.{place}" not in waiting]
        for section in ("rewards", "check")
    }
    return stage.config.model_copy(update=entries)


# --- the stages ------------------------------------------------------------------------------------------------------


def _carry_out(config: PipelineConfig, store: PipelineStore, view: TerminalView) -> Pipeline:
    done: dict[str, StageResult] = {}
    for stage in config.stages:
        algorithm = stage.config.algorithm.name
        shown = stage.name if stage.name == algorithm else f"{stage.name} ({algorithm})"
        view.event(f"stage {stage.number} of {len(config.stages)}", shown)
        done[stage.name] = _finished(stage, config, store) or _train_stage(stage, config, store, view, done)
        _judge(stage, config, store, view)
    policy = config.last_policy
    export = _export(config, store, view)
    store.finish()
    with suppress(OSError):
        write_pipeline_report(store.folder)
    return Pipeline(
        folder=store.folder,
        stages=tuple(done.values()),
        model_path=done[policy.name].model_path if policy else None,
        export=export,
    )


def _finished(stage: Stage, config: PipelineConfig, store: PipelineStore) -> StageResult | None:
    """The result of a stage that was done before, or None. What it hands over is described if a kill prevented it."""
    folder = store.folder / stage.folder
    run = read_run(folder)
    if run.status != "finished":
        return None
    checkpoint = _last_checkpoint(folder)
    record = store.handover(stage)
    if not record.exists():
        who = f"stage {stage.name} has lost what it trained"
        describe_saved(checkpoint, stage.config.model, makes=stage.makes, who=who).write(record)
    received = store.update(stage, status="finished", model=_inside(store, checkpoint / "model")).get("received", {})
    return _result(stage, folder, checkpoint, run.evaluation, received)


def _train_stage(
    stage: Stage, config: PipelineConfig, store: PipelineStore, view: TerminalView, done: Mapping[str, StageResult]
) -> StageResult:
    """Prove the hand-overs, train or go on with the run, and describe what it hands over."""
    folder = store.folder / stage.folder
    store.update(stage, status="training")
    received = _receive(stage, config, store, view, done)
    resolved = stage.with_models({name: str(done[name].model_path) for name in stage.uses.values()})
    resolved = _in_folder(resolved, folder)
    own = TerminalView(view.stream, quiet=view.quiet, show_samples=view.show_samples)
    with _named(stage):
        run = api.resume(folder, view=own) if holds_run(folder) else api.train_resolved(resolved, view=own)
    describe(run.loaded, run.step, makes=stage.makes).write(store.handover(stage))
    evaluation = run.evaluation
    del run
    gc.collect()  # the model and its optimizer, before the next ones are loaded
    checkpoint = _last_checkpoint(folder)
    store.update(stage, status="finished", model=_inside(store, checkpoint / "model"))
    return _result(stage, folder, checkpoint, evaluation, received)


def _receive(
    stage: Stage, config: PipelineConfig, store: PipelineStore, view: TerminalView, done: Mapping[str, StageResult]
) -> dict[str, Any]:
    """Setting -> proof, for every model that this stage gets from an earlier one."""
    proofs: dict[str, Any] = {}
    for giver in config.stages:
        if giver.name in stage.uses.values():
            checkpoint = done[giver.name].model_path.parent
            promised = HandOver.read(store.handover(giver))
            who = f"stage {stage.name} does not get the model that stage {giver.name} has trained"
            proof = receive(checkpoint, promised, stage.config.model, makes=giver.makes, who=who)
            proofs[giver.name] = {"stage": giver.name, "checkpoint": _inside(store, checkpoint), **proof}
            shown = f"{proof['weights_compared']} weights equal, largest difference {proof['largest_difference']:.2g}"
            view.event("hand-over", f"the model of stage {giver.name}: {shown}")
    received = {setting: proofs[name] for setting, name in stage.uses.items()}
    store.update(stage, received=received)
    return received


def _judge(stage: Stage, config: PipelineConfig, store: PipelineStore, view: TerminalView) -> None:
    """Warn of a stage that made its own held-out measure worse, or stop there."""
    found = verdict(read_run(store.folder / stage.folder))
    if found.change >= 0 or found.baseline is None or found.trained is None:
        return
    before, after = (show_span(found.measure, side) for side in (found.baseline, found.trained))
    text = f"stage {stage.name} made its held-out {found.measure} worse: {before} before, {after} after"
    store.update(stage, warnings=[text])
    if config.settings.stop_if_worse:
        raise GuardStop(
            given=text,
            allowed="no change for the worse beyond the intervals (stop_if_worse)",
            fix=f"Change the stage; or set stop_if_worse: false in {store.folder / SETTINGS} and resume.",
        )
    view.event("warning", text)


def _export(config: PipelineConfig, store: PipelineStore, view: TerminalView) -> Path | None:
    """The exported last policy, where one is asked for; one that is there already stays."""
    wanted, policy = config.settings.export, config.last_policy
    if wanted is None or policy is None:
        return None
    output = Path(wanted.output) if wanted.output is not None else store.folder / "export"
    if store.content.get("export") != str(output):
        from posttrain.export import export

        view.event("export", f"stage {policy.name} to {output}")
        export(store.folder / policy.folder, output, to=wanted.to)
        store.exported(output)
    return output


# --- small parts -----------------------------------------------------------------------------------------------------


def _in_folder(resolved: Resolved, folder: Path) -> Resolved:
    config = resolved.config.model_copy(update={"output": str(folder)})
    return Resolved(config=config, origins={**resolved.origins, "output": "pipeline"})


def _last_checkpoint(folder: Path) -> Path:
    """The newest one, intact or not: what is handed over is this or nothing."""
    run = read_run(folder)
    return run.checkpoint(run.checkpoint_steps[-1] if run.checkpoint_steps else 0)


def _inside(store: PipelineStore, path: Path) -> str:
    """The path within the pipeline's folder, which may be moved."""
    return path.relative_to(store.folder).as_posix()


def _result(
    stage: Stage, folder: Path, checkpoint: Path, evaluation: Mapping[str, Any], received: Mapping[str, Any]
) -> StageResult:
    return StageResult(
        name=stage.name,
        algorithm=stage.config.algorithm.name,
        folder=folder,
        model_path=checkpoint / "model",
        evaluation=dict(evaluation),
        received=dict(received),
    )


@contextmanager
def _named(stage: Stage) -> Iterator[None]:
    """Errors of a stage say whose they are, and leave it to the pipeline to say how to go on."""
    try:
        yield
    except BaseException as error:
        error.__notes__ = []
        if isinstance(error, PosttrainError):
            error.given = f"stage {stage.name}: {error.given}"
            error.args = (f"stage {stage.name}: {error}",)
        raise


@contextmanager
def _recording(store: PipelineStore, view: TerminalView) -> Iterator[None]:
    """Whatever ends a pipeline is on file, and the error says where it is and how to go on."""
    with ExitStack() as closing:
        closing.callback(store.close)
        closing.callback(view.close)
        try:
            yield
        except BaseException as error:
            with suppress(OSError):
                store.failed(error)
            if store.has_begun:
                with suppress(Exception):  # a page about the failure must not become the failure
                    write_pipeline_report(store.folder)
                note = f"The pipeline is in {store.folder}; `posttrain resume {store.folder}` goes on with it."
            else:
                note = f"Nothing was trained; {store.folder} can be used again."
            error.add_note(note)
            raise
