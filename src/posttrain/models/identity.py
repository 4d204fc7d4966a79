"""A key of a model for caches of its results: two models that can answer differently have two keys.

The answers of a model depend on its settings and weights and on the way in which it is computed. Texts also depend on
its tokenizer and on the ids that end an answer.
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
"""The modules that compute the numbers of every model."""


def model_identity(
    model: nn.Module,
    *,
    compute_dtype: torch.dtype,
    tokenizer: Any = None,
    eos_ids: Collection[int] = (),
    code: tuple[str, ...] = (),
) -> str:
    """Return the key of a model and of how it is computed here; `code` names further modules that compute its numbers.

    With a tokenizer, the key is for results that are texts.
    """
    text = [None if tokenizer is None else tokenizer_key(tokenizer), sorted(eos_ids)]
    parts = [model_key(model), computation_key(model, compute_dtype=compute_dtype, code=code), text]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def computation_key(
    model: nn.Module, *, compute_dtype: torch.dtype, matmul: str = "plain", code: tuple[str, ...] = ()
) -> str:
    """Return the key of how a model is computed here: precision, kind of products and of device, versions and code."""
    versions = [torch.__version__, transformers.__version__, tokenizers.__version__]
    parts = [str(compute_dtype), matmul, next(model.parameters()).device.type, versions, code_key(*COMPUTING, *code)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@torch.no_grad()
def model_key(model: nn.Module) -> str:
    """Return the hash of a model's weights, settings and kind of attention; adapters are left out."""
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
    """Return the class, and the config without the place that it came from.

    The attention is the one that was requested. Packing (forward_path.py) is decided in the first pass and follows from
    it.
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


NUMBERS = 256
"""Hashed numbers per weight, evenly spread. Training changes nearly all numbers, and hashing all takes minutes."""


@torch.no_grad()
def start_key(model: nn.Module) -> str:
    """Hash of a model whose weights have not changed since they were read; with adapters, the hash of the base."""
    digest = hashlib.sha256()
    for name in sorted(state := without_adapters(model).state_dict(keep_vars=True)):
        if "lora_" in name:
            continue
        tensor = whole(state[name])
        digest.update(f"{name.replace('.base_layer', '')} {tensor.dtype} {list(tensor.shape)}".encode())
        some = tensor.detach().reshape(-1)[:: max(1, tensor.numel() // NUMBERS)].cpu().contiguous()
        digest.update(some.view(torch.uint8).numpy().data)
    return digest.hexdigest()
