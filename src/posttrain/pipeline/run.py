"""Runs a pipeline: its stages one after the other, each an ordinary run in a folder of its own.

    OUTPUT/
      pipeline.yaml      all settings of all stages; `posttrain resume OUTPUT` reads them
      pipeline.json      the progress: status, model and hand-over proofs of each stage
      01-sft/ 02-dpo/    the runs
      handover/          descriptions of the models that stages handed over, see `handover.py`
      export/            the exported model, if an export is asked for
      report.html        the stages side by side

Data and reward functions of all stages are checked before the first stage trains. A pipeline that is killed at any
moment and resumed gives the same result: finished stages stay, and the interrupted one resumes like any run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from posttrain.config.pipeline import PipelineConfig, Stage, holds_stages, notes, read_pipeline, read_saved, to_yaml
from posttrain.config.urls import is_url
from posttrain.errors import ConfigError, DoesNotFit, GuardStop
from posttrain.export.target import check_place
from posttrain.pipeline.stage import StageResult, finished, named, train_stage
from posttrain.pipeline.store import PipelineStore
from posttrain.ranks.environment import place_of_process
from posttrain.report.lines import short_line
from posttrain.report.pipeline_page import write_pipeline_report
from posttrain.report.spans import show_span
from posttrain.report.store import read_run
from posttrain.report.terminal import TerminalView
from posttrain.report.verdict import in_brief, verdict
from posttrain.shown import shown
from posttrain.store.folders import SETTINGS, pipeline_around
from posttrain.train import api
from posttrain.train.before import BEFORE
from posttrain.train.job import FinishedRun
from posttrain.train.run import Run


@dataclass(frozen=True, kw_only=True, repr=False)
class Pipeline:
    """The result of `train` and `resume` for a file with stages."""

    folder: Path
    stages: tuple[StageResult, ...]
    model_path: Path | None
    """The model folder of the last policy; None if only reward models were trained."""
    export: Path | None
    """The folder of the exported policy; None without an export."""

    @property
    def evaluation(self) -> dict[str, Any]:
        """The evaluations by name of the stage."""
        return {stage.name: stage.evaluation for stage in self.stages}

    def __fspath__(self) -> str:
        """The pipeline's folder, so that functions that take a folder accept a pipeline: `resume(pipeline)`."""
        return str(self.folder)

    def __repr__(self) -> str:
        """`<Pipeline runs/chat-1: sft, dpo trained accuracy 71% (62% to 78%)>`"""
        after = ((stage.name, stage.evaluation.get("trained")) for stage in self.stages)
        stages = [name if not found else f"{name} trained {short_line(found)}" for name, found in after]
        return f"<Pipeline {self.folder}: {', '.join(stages)}>"

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
                    "verdict": in_brief(read_run(stage.folder)),
                    "evaluation": stage.evaluation,
                }
                for stage in self.stages
            ],
        }


def start(config: Any, *, view: TerminalView | None = None, **overrides: Any) -> Run | FinishedRun | Pipeline:
    """`posttrain.train`: train a run, or a pipeline if the config has `stages`. See `posttrain.train.api.train`.

    `posttrain.config.pipeline.read_pipeline` describes the overrides of a pipeline.
    """
    if holds_stages(config):
        return train_pipeline(read_pipeline(config, overrides), view=view)
    return api.train(config, view=view, **overrides)


def go_on(
    folder: str | PathLike[str],
    *,
    steps: int | None = None,
    devices: int | None = None,
    tensor: int | None = None,
    functions: Any = None,
    view: TerminalView | None = None,
) -> Run | FinishedRun | Pipeline:
    """`posttrain.resume`: resume a run or a pipeline, given its folder or the result of `train`."""
    if is_url(folder):
        return api.resume(folder, steps=steps, devices=devices, functions=functions, view=view)
    folder = Path(folder)
    if not (folder / SETTINGS).is_file():
        around = pipeline_around(folder)
        if around is not None and steps is not None:
            raise ConfigError(
                given=f"--steps {steps} for {folder}, a stage of the pipeline {around}",
                allowed="the steps that the pipeline gives the stage, because later stages started from its final "
                "model",
                fix=f"Copy {folder} out of {around} and resume the copy. Proofs and reports stay in the pipeline.",
            )
        return api.resume(folder, steps=steps, devices=devices, tensor=tensor, functions=functions, view=view)
    numbers = {"steps": steps, "devices": devices, "tensor": tensor}
    asked = [f"--{name} {value}" for name, value in numbers.items() if value is not None]
    if asked:
        raise ConfigError(
            given=f"{asked[0]} for the pipeline {folder}",
            allowed="no such number, because each stage has its own",
            fix=f"`posttrain resume {shown(folder)}` finishes the pipeline.",
        )
    return resume_pipeline(folder, view=view)


def train_pipeline(config: PipelineConfig, *, view: TerminalView | None = None) -> Pipeline:
    """Train all stages. Raises the errors of `train`. The folder then holds everything up to that moment."""
    refuse_ranks()
    folder = pipeline_folder(config)
    view = view or TerminalView(quiet=True)
    store = PipelineStore.create(folder, to_yaml(config, str(folder)), config.stages)
    with _recording(store, view):
        for note in notes(config):
            view.event("warning", note)
        BEFORE.stages(config.with_start_models(), folder)
        look_ahead(config, store)
        return _carry_out(config, store, view)


def resume_pipeline(folder: str | PathLike[str], *, view: TerminalView | None = None) -> Pipeline:
    """Resume a pipeline. A finished one stays unchanged."""
    refuse_ranks()
    folder = Path(folder)
    config = read_saved(folder / SETTINGS)
    view = view or TerminalView(quiet=True)
    store = PipelineStore.open(folder, config.stages)
    with _recording(store, view):
        look_ahead(config, store)
        return _carry_out(config, store, view)


def refuse_ranks() -> None:
    """Raise ConfigError in a job that torchrun or srun has started: each of its processes would train all stages."""
    place = place_of_process()
    if place is not None:
        raise ConfigError(
            given=f"a pipeline in a job of {place.size} processes",
            allowed="a pipeline in one process, which starts the ranks of each stage",
            fix="Start it without torchrun or srun, with train.devices in its stages.",
        )


def pipeline_folder(config: PipelineConfig) -> Path:
    """`output`, or the first free runs/<file name>-<n>."""
    if config.settings.output is not None:
        if is_url(config.settings.output):
            raise ConfigError(
                given=f"output = {config.settings.output} for a pipeline, whose stages read each other's folders",
                allowed="a folder; a single run may have a URL",
                fix="Set output to a folder, and copy the finished pipeline from there.",
            )
        return Path(config.settings.output)
    stem = Path(config.source).stem if config.source else "pipeline"
    taken = {path.name for path in Path("runs").glob(f"{stem}-*")}
    return Path("runs") / next(f"{stem}-{n}" for n in range(1, len(taken) + 2) if f"{stem}-{n}" not in taken)


def look_ahead(config: PipelineConfig, store: PipelineStore) -> None:
    """Check that unfinished stages can read their data and import their reward functions, and that the folder of the
    export is free. Raises the first error."""
    for stage in config.stages:
        folder = store.folder / stage.folder
        if read_run(folder).status != "finished":
            with named(stage):
                api.read_inputs(_without_stages(stage), folder)
    output = export_folder(config, store)
    if output is not None and not store.has_announced(output):
        try:
            check_place(output, store.folder, force=False)
        except ConfigError as error:
            fix = f"Set export.output to another folder, or remove {output}."
            raise ConfigError(given=f"export: {error.given}", allowed=error.allowed, fix=fix) from error


def export_folder(config: PipelineConfig, store: PipelineStore) -> Path | None:
    """The folder for the exported last policy; None if no export is asked for."""
    wanted = config.settings.export
    if wanted is None or config.last_policy is None:
        return None
    return Path(wanted.output) if wanted.output is not None else store.folder / "export"


def _without_stages(stage: Stage) -> Any:
    """The stage's settings without rewards and checks whose model is not trained yet, and without what they gate."""
    waiting, config = {".".join(setting.split(".")[:2]) for setting in stage.uses}, stage.config
    names = {one.metric_name for place, one in enumerate(config.rewards) if f"rewards.{place}" in waiting}
    check = [one for place, one in enumerate(config.check) if f"check.{place}" not in waiting]
    return config.model_copy(update={"rewards": api.without_rewards(config.rewards, names), "check": check})


# --- the stages ------------------------------------------------------------------------------------------------------


def _carry_out(config: PipelineConfig, store: PipelineStore, view: TerminalView) -> Pipeline:
    done: dict[str, StageResult] = {}
    for stage in config.stages:
        algorithm = stage.config.algorithm.name
        title = stage.name if stage.name == algorithm else f"{stage.name} ({algorithm})"
        view.event(f"stage {stage.number} of {len(config.stages)}", title)
        done[stage.name] = finished(stage, store, done) or train_stage(stage, store, view, done)
        _judge(stage, config, store, view)
    policy = config.last_policy
    export = _export(config, store, view)
    store.finish()
    with suppress(OSError, DoesNotFit):
        write_pipeline_report(store.folder)
    return Pipeline(
        folder=store.folder,
        stages=tuple(done.values()),
        model_path=done[policy.name].model_path if policy else None,
        export=export,
    )


def _judge(stage: Stage, config: PipelineConfig, store: PipelineStore, view: TerminalView) -> None:
    """Warn of a stage that made its own held-out measure worse, or stop the pipeline."""
    found = verdict(read_run(store.folder / stage.folder))
    if found.change >= 0 or found.baseline is None or found.trained is None:
        return
    before, after = (show_span(found.measure, side) for side in (found.baseline, found.trained))
    text = f"stage {stage.name} made its held-out {found.measure} worse: {before} before, {after} after"
    store.update(stage, warnings=[text])
    if config.settings.stop_if_worse:
        raise GuardStop(
            given=text,
            allowed="no deterioration beyond the intervals (stop_if_worse)",
            fix=f"Change the stage. Or set stop_if_worse: false in {store.folder / SETTINGS} and resume.",
        )
    view.event("warning", text)


def _export(config: PipelineConfig, store: PipelineStore, view: TerminalView) -> Path | None:
    """Export the last policy if that is asked for. An export that exists already stays.

    A pipeline may replace a folder that it has announced, because a kill may have left an incomplete export there.
    """
    wanted, policy, output = config.settings.export, config.last_policy, export_folder(config, store)
    if wanted is None or policy is None or output is None or store.has_exported(output):
        return output
    from posttrain.export import export

    view.event("export", f"stage {policy.name} to {output}")
    replaces = store.has_announced(output)
    store.announce(output)
    export(store.folder / policy.folder, output, to=wanted.to, force=replaces)
    store.exported(output)
    return output


@contextmanager
def _recording(store: PipelineStore, view: TerminalView) -> Iterator[None]:
    """Record the error that ends a pipeline, and note on it where the pipeline is and how to continue."""
    with ExitStack() as closing:
        closing.callback(store.close)
        closing.callback(view.close)
        try:
            yield
        except BaseException as error:
            with suppress(OSError, DoesNotFit):
                store.failed(error)
            if store.has_begun:
                with suppress(Exception):  # a page about the failure must not become the failure
                    write_pipeline_report(store.folder)
                continues = f"; `posttrain resume {shown(store.folder)}` continues it"
                lasting = getattr(error, "is_lasting", False)  # the error says what to do first
                note = f"The pipeline is in {store.folder}{'' if lasting else continues}."
            else:
                note = f"Nothing was trained; you can use {store.folder} again."
            error.add_note(note)
            raise
