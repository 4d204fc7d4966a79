"""GGUF, the one-file form that llama.cpp runs; needs the package gguf (extra `gguf`), which is imported on use."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from posttrain.errors import ConfigError, ModelError
from posttrain.export.origin import Origin
from posttrain.export.target import Written
from posttrain.models.load import LoadedModel


def require(origin: Origin) -> None:
    """Raises ModelError without the package gguf, and ConfigError for a model that scores."""
    if importlib.util.find_spec("gguf") is None:
        raise ModelError(
            given="--to gguf needs the package gguf, which is not installed",
            fix="Run: pip install 'posttrain[gguf]'",
        )
    if origin.head != "tokens":
        raise ConfigError(
            given=f"{origin.name} scores rows, and --to gguf writes language models",
            allowed="hf",
            fix="Export with --to hf.",
        )


def write_gguf(loaded: LoadedModel, folder: Path, *, name: str, dtype: str) -> Written:
    from posttrain.export.gguf.writer import write_gguf as write

    return write(loaded, folder, name=name, dtype=dtype)
