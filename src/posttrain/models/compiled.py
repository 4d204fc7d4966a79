"""Decoder layers compiled in place by `torch.compile`: `train.compile`.

Only passes of training and scoring run compiled code. Decoding and probing with the same modules runs them uncompiled
(see `modes.evaluating`), because compiling their shapes, caches and hooks would not pay.

All layers share the compiled code, for any number of tokens. Attention of packed rows stays outside: the cuts of a
packing change with each micro-batch, and its kernels are already compiled. Compilation fuses norms, rotary embeddings,
activations and the sums between products.
"""

from __future__ import annotations

import importlib.util
import os
import shutil

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from posttrain.errors import ConfigError
from posttrain.models.forward_path import shares_prefixes, without_adapters
from posttrain.models.modes import compiled
from posttrain.models.packed_attention import stay_uncompiled
from posttrain.models.transformers_private import router_kinds

FIX = "Leave train.compile out; the numbers are the same except for rounding."
"""The remedy for each error."""


def compile_layers(model: nn.Module, *, backend: str = "inductor") -> None:
    """Compile the decoder layers of `model` in place, when they first run.

    Classes and names of tensors stay the same. Raises ConfigError without a compiler, for a model whose layers
    transformers does not mark, and for a mixture of experts, whose shapes depend on its inputs.
    """
    plain = without_adapters(model)
    assert isinstance(plain, PreTrainedModel)
    _require_compiler(plain.device)
    if router_kinds(plain):
        raise ConfigError(
            given=f"train.compile = true, but {type(plain).__name__} is a mixture of experts",
            allowed="dense models: a mixture only knows at run time how many tokens each expert gets",
            fix=FIX,
        )
    layers = [module for module in plain.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            given=f"train.compile = true, but {type(plain).__name__} has no layers that transformers marks as such",
            allowed="models whose layers are GradientCheckpointingLayers",
            fix=FIX,
        )
    shares_prefixes(plain)  # finds the forward path while the layers are still uncompiled
    stay_uncompiled()
    for layer in layers:
        layer.compile(dynamic=True, backend=backend)
        compiled.add(layer)


def layers_compiled(model: nn.Module) -> int:
    """Return how many of its modules are compiled."""
    return sum(module in compiled for module in model.modules())


def _require_compiler(device: torch.device) -> None:
    if device.type == "cuda":
        missing = "" if importlib.util.find_spec("triton") else "Triton, which generates its kernels"
    else:
        compilers = (os.environ.get("CXX", "g++"), "clang++")
        missing = "" if any(map(shutil.which, compilers)) else "C++ compiler (g++ or clang++; CXX names another)"
    if missing:
        raise ConfigError(
            given=f"train.compile = true, but this machine has no {missing}",
            allowed="machines on which torch.compile can generate code",
            fix=FIX,
        )
