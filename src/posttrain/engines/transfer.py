"""Transfer of numbers between the host and the device that decodes, without blocking either.

A GPU works through a queue, and the host runs ahead of it. Reading a tensor, indexing with a list and copying from
pageable memory all block the host until the queue is empty. Here, copies go through pinned memory and join the queue,
and an event tells when one has arrived. The CPU has no queue, and there nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def to_device(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Return integers of the host as an int64 tensor on the device."""
    return move(torch.tensor(numbers, dtype=torch.long), device)


def move(host: Tensor, device: torch.device) -> Tensor:
    """Return a host tensor on the device. The host must not write to it afterwards."""
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)


class Reading:
    """Tensors of one device on their way to the host, queued after the operations that compute them."""

    def __init__(self, *tensors: Tensor) -> None:
        self._host, self._arrived = tensors, None
        device = tensors[0].device
        if device.type != "cpu":
            self._host = tuple(tensor.to("cpu", non_blocking=True) for tensor in tensors)
            self._arrived = torch.get_device_module(device).Event()
            self._arrived.record()

    def lists(self) -> list[list]:
        """Wait until the tensors have arrived, and return them as lists."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return [tensor.tolist() for tensor in self._host]
