"""Restores trained weights from a checkpoint into the model's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posttrain.errors import CheckpointError
from posttrain.models.layout import part_of


def detached(parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in parameters.items()}


_SAME = "the weights of a run with the same model, the same critic and the same LoRA settings"
_AS_STARTED = "Resume with the config that the run was started with."


@torch.no_grad()
def take_over(parameters: Mapping[str, nn.Parameter], saved: Mapping[str, Tensor], path: Path, what: str) -> None:
    """Write the saved values into the parameters; raises `CheckpointError` if names or shapes differ."""
    if parameters.keys() != saved.keys():
        odd = sorted(parameters.keys() ^ saved.keys())
        raise CheckpointError(
            given=f"{path} holds other trained {what} has: {', '.join(odd[:3])}",
            allowed=_SAME,
            fix=_AS_STARTED,
        )
    for name, tensor in saved.items():
        if parameters[name].shape != tensor.shape:
            raise CheckpointError(
                given=f"{path} holds other trained {what} has: {name} is {list(tensor.shape)} there and "
                f"{list(parameters[name].shape)} here",
                allowed=_SAME,
                fix=_AS_STARTED,
            )
    for name, tensor in saved.items():
        parameters[name].copy_(part_of(tensor, parameters[name]))


def require_same_adapters(saved: Mapping[str, Any], now: Mapping[str, Any], path: Path) -> None:
    """Raise `CheckpointError` if the adapters were saved with another scale than they have now."""
    different = [f"{name} was {saved[name]} and is {now.get(name)}" for name in saved if now.get(name) != saved[name]]
    if different:
        raise CheckpointError(
            given=f"the adapters in {path} were trained with another scale: {', '.join(different)}",
            allowed=_SAME,
            fix=_AS_STARTED,
        )
