"""What a run has trained so far."""

from __future__ import annotations

from pathlib import Path

from posttrain.config import ModelConfig, RunConfig
from posttrain.errors import ModelError
from posttrain.train.checkpoint import Checkpoints


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
