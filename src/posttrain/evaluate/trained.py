"""Whether a folder is that of a run, and what the run has trained so far."""

from __future__ import annotations

from pathlib import Path

from posttrain.config import ModelConfig, RunConfig
from posttrain.errors import ModelError
from posttrain.store.checkpoint import Checkpoints
from posttrain.store.folders import finished_stages, is_pipeline


def is_run(folder: Path) -> bool:
    """Does the folder hold a run? Raises ModelError for that of a pipeline, each stage of which is one."""
    if not is_pipeline(folder):
        return (folder / "config.yaml").is_file()
    stages = [repr(str(stage)) for stage in finished_stages(folder)]
    raise ModelError(
        given=f"{folder} is the folder of a pipeline" + ("" if stages else ", and no stage of it has finished yet"),
        allowed="a model folder, or the folder of one run, such as that of a stage",
        fix=f"Give that of a finished stage: {' or '.join(stages)}."
        if stages
        else f"`posttrain resume {folder}` continues it.",
    )


def trained_model(run: Path, config: RunConfig) -> ModelConfig:
    """The model of the newest checkpoint that verifies, read as the run reads its model.

    Raises ModelError when the run has no checkpoint, CheckpointError when all of them are damaged.
    """
    newest = Checkpoints(run / "checkpoints", config.checkpoint.keep).newest()
    if newest is None:
        raise ModelError(
            given=f"the run {run} has no checkpoint yet",
            allowed="a run that has saved one, or a model folder",
            fix=f"`posttrain resume {run}` continues it.",
        )
    return config.model.model_copy(update={"path": str(newest.model), "gguf_file": None, "revision": None})
