"""The name of a model for what is kept of its results: two that can answer differently have two names.

What a model says is decided by its settings and weights, by the way in which it is computed, and for texts by its
tokenizer and by the ids that end an answer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from typing import Any

import tokenizers
import torch
import transformers
from torch import nn

from posttrain.cache import code_key, tokenizer_key
from posttrain.models.entering import whole
from posttrain.models.forward_path import without_adapters
from posttrain.models.transformers_private import attention_name

COMPUTING = ("models/*.py", "cpu/*.py", "functional/*logprobs.py")
"""The modules through which the numbers of every model go."""


def model_identity(
    model: nn.Module,
    *,
    compute_dtype: torch.dtype,
    tokenizer: Any = None,
    eos_ids: Collection[int] = (),
    code: tuple[str, ...] = (),
) -> str:
    """Of a model and of how it is computed here; `code` are the modules that its numbers go through beside `COMPUTING`.

    With a tokenizer it is the name of what reads and writes texts.
    """
    text = [None if tokenizer is None else tokenizer_key(tokenizer), sorted(eos_ids)]
    parts = [model_key(model), computation_key(model, compute_dtype=compute_dtype, code=code), text]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def computation_key(
    model: nn.Module, *, compute_dtype: torch.dtype, matmul: str = "plain", code: tuple[str, ...] = ()
) -> str:
    """How a model is computed here: precision, kind of products and of device, versions and code."""
    versions = [torch.__version__, transformers.__version__, tokenizers.__version__]
    parts = [str(compute_dtype), matmul, next(model.parameters()).device.type, versions, code_key(*COMPUTING, *code)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@torch.no_grad()
def model_key(model: nn.Module) -> str:
    """Hash of the weights, the settings and the kind of attention of a model; of one with adapters, of its base."""
    plain = without_adapters(model)
    digest = hashlib.sha256(json.dumps(_settings(plain), sort_keys=True, default=str).encode())
    for name in sorted(state := plain.state_dict(keep_vars=True)):
        if "lora_" in name:
            continue
        tensor = whole(state[name])
        digest.update(f"{name.replace('.base_layer', '')} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _settings(model: nn.Module) -> Any:
    """The class, and the config but for the place that it came from.

    The attention is the one that was asked for: that rows are packed (forward_path.py) is found out on the first pass
    and follows from it.
    """
    config = getattr(model, "config", None)
    if config is None:
        return type(model).__qualname__
    attention = attention_name(config).removeprefix("packed_")
    return [type(model).__qualname__, attention, _public(config.to_dict())]


def _public(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _public(one) for name, one in value.items() if not str(name).startswith("_")}
    return [_public(one) for one in value] if isinstance(value, list | tuple) else value
