"""Remember the trials that find how a model is run, in tests that are about something else.

Each run loads the tiny model anew and finds by a few short passes how it is run and decoded. These passes take longer
than a step. A trial depends on the model alone: on its config, its weights, and the code of its modules. If all of
these are the same, the result is that of the first trial. The tests of the trials themselves do not use this module.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Hashable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from posttrain.cpu import kernels
from posttrain.engines import decoding_path as decoding
from posttrain.engines.decoding import base_model, is_hooked
from posttrain.models import forward_path as forward
from posttrain.models.acceleration import acceleration
from posttrain.models.transformers_private import attention_name

_decoding: dict[Hashable, decoding.DecodingPath] = {}
_forward: dict[Hashable, tuple[str, forward.ForwardPath]] = {}
"""The name of the body in its model, and the path without the body."""


def remember(patch: pytest.MonkeyPatch) -> None:
    """Try equal models once while `patch` is in force."""
    find_decoding, find_forward = decoding._find_path, forward._find_path

    def decoding_path(model: nn.Module, dtype: torch.dtype | None) -> decoding.DecodingPath:
        of = _fingerprint(model, base_model(model), dtype, torch.is_autocast_enabled("cpu"))
        if of is None:
            return find_decoding(model, dtype)
        if of not in _decoding:
            _decoding[of] = find_decoding(model, dtype)
        return _decoding[of]

    def forward_path(lm: PreTrainedModel) -> forward.ForwardPath:
        of = _fingerprint(lm, lm)
        if of is None:
            return find_forward(lm)
        if of not in _forward:
            path = find_forward(lm)
            name = next(name for name, module in lm.named_modules() if module is path.body)
            _forward[of] = name, replace(path, body=nn.Identity())
            return path
        name, path = _forward[of]
        forward._set_attention(lm, path.implementation)
        return replace(path, body=lm.get_submodule(name))

    patch.setattr(decoding, "_find_path", decoding_path)
    patch.setattr(forward, "_find_path", forward_path)


def _fingerprint(model: nn.Module, lm: PreTrainedModel, *more: Hashable) -> Hashable | None:
    """Return all that differs between the models of these tests; None for a model with hooks, with modules that have a
    forward of their own, or with tensors that are not plain ones on the CPU.

    It holds no attributes of modules, such as the scaling of adapters, and no functions outside of modules. It also
    reads every tensor. Files of tests that patch the former or watch the latter belong in `TRIED_ANEW` of conftest.py.
    """
    modules = dict(model.named_modules())
    numbers: list[tuple[str, Tensor]] = [*model.named_parameters(), *model.named_buffers()]
    if any(map(is_hooked, modules.values())) or any(_elsewhere(x) for _, x in numbers):
        return None
    return (
        tuple((name, type(module), type(module).forward, module.training) for name, module in modules.items()),
        tuple((name, x.dtype, x.shape, x.requires_grad, _checksum(x)) for name, x in numbers),
        (lm.config.to_json_string(use_diff=False), attention_name(lm.config)),
        (acceleration(), kernels.kernels(), os.environ.get("POSTTRAIN_KERNELS")),
        more,
    )


def _elsewhere(x: Tensor) -> bool:
    return x.device.type != "cpu" or x.layout != torch.strided


def _checksum(x: Tensor) -> int:
    return zlib.crc32(x.detach().flatten().contiguous().view(torch.uint8).numpy())
