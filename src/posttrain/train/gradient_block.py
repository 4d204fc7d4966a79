"""Gradients of one optimizer step side by side in memory of their own, on a CPU.

The first micro-batch makes each gradient wherever the activations that it replaces were, and there it stays until the
step is taken. What later micro-batches keep has to fit between them, and hardly does: the peak of a step of 110M
parameters was anything from 4.0 to 4.9 GB, and is 4.1 to 4.3 GB with gradients moved out of the way. A GPU has an
allocator that finds memory by its size.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

ALIGNMENT = 64
"""Bytes: a line of a processor's cache."""


class GradientBlock:
    """Moves each gradient into one block as soon as it is made; a parameter that gets none has none there either."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        """Those that are on a GPU, or not laid out row by row, are left alone."""
        self._offsets: dict[int, int] = {}
        self._bytes = 0
        self._block: Tensor | None = None
        for parameter in parameters:
            if parameter.device.type == "cpu" and parameter.is_contiguous():
                self._offsets[id(parameter)] = self._bytes
                self._bytes += -(-parameter.nbytes // ALIGNMENT) * ALIGNMENT
                parameter.register_post_accumulate_grad_hook(self._move)

    def release(self) -> None:
        """Give the memory back, once no parameter has a gradient in it any more."""
        self._block = None

    def _move(self, parameter: Tensor) -> None:
        """What is added later is added in place."""
        gradient = parameter.grad
        assert gradient is not None, "called when there is a gradient"
        if self._block is None:
            self._block = torch.empty(self._bytes, dtype=torch.uint8)
        start = self._offsets[id(parameter)]
        place = self._block[start : start + parameter.nbytes].view(parameter.dtype).view(parameter.shape)
        if gradient.data_ptr() != place.data_ptr():
            parameter.grad = place.copy_(gradient)
