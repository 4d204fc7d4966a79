"""Copies between the host's memory and a GPU that wait as little as possible.

A copy from ordinary memory makes the host wait for all earlier work of the GPU, which is then idle until it gets new
work. From pinned memory, the copy is queued like any other work. The pinned memory is a copy to which nobody writes,
and PyTorch keeps it until the GPU has read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor

from posttrain.types import Batch


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """Return `x` on `device`; a copy to a GPU is asynchronous."""
    if device.type != "cuda" or x.device.type != "cpu":
        return x.to(device)
    return x.pin_memory().to(device, non_blocking=True)


def on_the_host(parts: Sequence[Tensor]) -> list[Tensor]:
    """Return the same tensors, of one dtype, in the host's memory, by a single copy that waits for the GPU once."""
    if all(part.device.type == "cpu" for part in parts):
        return list(parts)
    numbers = torch.cat([part.flatten() for part in parts]).cpu().split([part.numel() for part in parts])
    return [found.view(part.shape) for found, part in zip(numbers, parts, strict=True)]


def batch_to(batch: Batch, device: torch.device) -> Batch:
    """Move the tensors that a loss reads to `device`, where the outputs of the forward pass are.

    Token ids stay where they are: the host packs the rows (packing.py), and losses do not read ids.
    """
    if device == batch.completion_mask_BT.device:
        return batch
    found = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return replace(batch, **{n: to_device(x, device) for n, x in found.items() if isinstance(x, torch.Tensor)})
