"""From the host's memory to a GPU, without waiting.

A copy from ordinary memory makes the host wait for everything that was asked of the GPU before, so that the GPU stands
still until it is asked for more. From pinned memory the copy is queued like any other work. The pinned memory is a copy
that nobody writes to, and PyTorch keeps it until the GPU has read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor

from posttrain.types import Batch


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """`x` on `device`; to a GPU asynchronously."""
    if device.type != "cuda" or x.device.type != "cpu":
        return x.to(device)
    return x.pin_memory().to(device, non_blocking=True)


def on_the_host(parts: Sequence[Tensor]) -> list[Tensor]:
    """The same tensors, of one dtype, in the host's memory: by one copy, which waits for the GPU once."""
    if all(part.device.type == "cpu" for part in parts):
        return list(parts)
    numbers = torch.cat([part.flatten() for part in parts]).cpu().split([part.numel() for part in parts])
    return [found.view(part.shape) for found, part in zip(numbers, parts, strict=True)]


def batch_to(batch: Batch, device: torch.device) -> Batch:
    """The tensors of these rows that a loss reads, beside the outputs of the forward pass on `device`.

    Token ids stay where they are: rows are packed on the host (packing.py), and losses read numbers.
    """
    if device == batch.completion_mask_BT.device:
        return batch
    found = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return replace(batch, **{n: to_device(x, device) for n, x in found.items() if isinstance(x, torch.Tensor)})
