"""Finds the run in a folder of a run or of a pipeline, and its trained model."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from posttrain.config import ModelConfig, RunConfig
from posttrain.errors import ModelError
from posttrain.evaluate.evaluation import Evaluation
from posttrain.evaluate.heldout import summarise
from posttrain.evaluate.measure import read_measured
from posttrain.evaluate.row_scores import of_baseline
from posttrain.files import require_plain
from posttrain.shown import shown
from posttrain.store.checkpoint import Checkpoints
from posttrain.store.folders import is_pipeline, last_stage, refuse_several_runs


def run_in(folder: Path) -> Path | None:
    """Return the folder of the run: this folder, or the last stage of a pipeline; None if it holds no run.

    Raises ModelError for a pipeline that is not finished and for a folder of several runs, and ConfigError for links in
    it (see `require_plain`).
    """
    if is_pipeline(folder):
        require_plain(folder)
        return last_stage(folder)
    if not os.path.lexists(folder / "config.yaml"):
        refuse_several_runs(folder)
        return None
    require_plain(folder)
    return folder


def trained_model(run: Path, config: RunConfig) -> ModelConfig:
    """Return the model of the newest checkpoint, with its own chat template and the run's settings for loading a model.

    Raises ModelError if the run has no checkpoint, and CheckpointError if the newest one is damaged.
    """
    newest = Checkpoints(run / "checkpoints", config.checkpoint.keep).last()
    if newest is None:
        raise ModelError(
            given=f"the run {run} has no checkpoint yet",
            allowed="a run that has saved one, or a model folder",
            fix=f"`posttrain resume {shown(run)}` continues it.",
        )
    as_saved = {"path": str(newest.model), "gguf_file": None, "revision": None, "chat_template": None}
    return config.model.model_copy(update=as_saved)


def baseline_of_run(run: Path, evaluation: Evaluation) -> Evaluation:
    """Add the run's measurement before training to an evaluation, restricted to answers to the same prompts."""
    before, lost = of_baseline(lambda: Evaluation.from_json(read_measured(run)["baseline"]))
    answers, lost_answers = of_baseline(lambda: Evaluation.read_answers(run / "evaluations" / "baseline.jsonl"))
    if before is None or answers is None:
        return replace(evaluation, lost=str((lost | lost_answers).get("lost")))
    asked = {(record.index, record.prompt) for record in evaluation.records}
    same = [record for record in answers if (record.index, record.prompt) in asked]
    if not same:
        return replace(evaluation, lost="the prompts are not those that were answered before training")
    shared = {name: getattr(before, name) for name in ("temperature", "top_p", "seed", "samples", "verifiers")}
    counted = summarise(
        same, max_completion_length=before.max_completion_length, confidence=evaluation.confidence, **shared
    )
    return replace(evaluation, before=counted)
