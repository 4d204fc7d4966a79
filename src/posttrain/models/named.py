"""Models that are named by a task instead of a folder: `tiny:sort`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posttrain.sources import MODELS

if TYPE_CHECKING:
    from posttrain.config import ModelConfig


def resolve_model_path(model: ModelConfig, seed: int) -> ModelConfig:
    """Return the config with `FORM:NAME` replaced by the folder of that model and seed, built if missing."""
    form, colon, name = model.path.partition(":")
    if not colon or form not in MODELS:
        return model
    return model.model_copy(update={"path": str(MODELS[form](name, seed))})
