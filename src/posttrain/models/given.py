"""A model that Python code passes with its tokenizer."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from posttrain.errors import ConfigError


def model_and_tokenizer(given: Any) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return `(model, tokenizer)`. Raise ConfigError for anything else, such as a model alone or the two swapped."""
    pair = given if isinstance(given, tuple) else ()
    if len(pair) == 2 and isinstance(pair[0], nn.Module) and isinstance(pair[1], PreTrainedTokenizerBase):
        return pair  # pyright: ignore[reportReturnType]
    kind = type(given).__name__
    if isinstance(given, list | tuple):
        kind += f" of {', '.join(type(one).__name__ for one in given) or 'nothing'}"
    raise ConfigError(
        given=f"model is of type {kind}",
        allowed="a folder, a name, or (model, tokenizer) as transformers loads them",
        fix="Pass both in a tuple: model=(model, tokenizer).",
    )
