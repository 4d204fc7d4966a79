"""The precision in which the local sampler decodes with the modules of a policy whose weights are float32.

On the CPU it uses autocast, which casts trained weights once between two completions, and frozen ones for every
product. On a GPU, that would cause most of the memory traffic, and an extra launch before every product. There, a call
casts all weights once and decodes with the casts. They are made from the weights that the call finds and are dropped
with it, so no later call can see stale ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn

HALF = (torch.bfloat16, torch.float16)
Precision = Callable[[], AbstractContextManager[object]]
"""The precision of one call of the sampler: entered for every run of passes, and left before other code computes."""


def precision_of(model: nn.Module, dtype: torch.dtype | None) -> Precision:
    """Return the precision of one call; `dtype` None: the precision in which the weights are stored."""
    if dtype not in HALF:
        return nullcontext
    device = next(model.parameters()).device.type
    return partial(torch.autocast, device, dtype=dtype) if device == "cpu" else Casts(model, dtype).in_place


class Casts:
    """Half-precision copies of a model's weights, in addition to the trained ones: 2 bytes per float32 number.

    Buffers keep their precision: in bfloat16, the frequencies of rotary embeddings could not tell positions apart.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._places = [
            (module._parameters, name, parameter)
            for module in model.modules()
            for name, parameter in module._parameters.items()
            if parameter is not None and parameter.is_floating_point() and parameter.dtype != dtype
        ]
        self._casts: dict[int, tuple[int, Tensor]] = {}
        """By the identity of the weight, so that tied weights share a cast: its version, and the cast."""

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Use the casts as weights inside the `with` block, and restore the modules' own afterwards. A weight that has
        changed since its cast is cast again."""
        try:
            for parameters, name, parameter in self._places:
                parameters[name] = self._cast(parameter)  # pyright: ignore[reportArgumentType]
            yield
        finally:
            for parameters, name, parameter in self._places:
                parameters[name] = parameter

    def _cast(self, parameter: nn.Parameter) -> Tensor:
        version, cast = self._casts.get(id(parameter), (-1, None))
        if cast is None or version != parameter._version:
            cast = nn.Parameter(parameter.detach().to(self._dtype), requires_grad=False)
            self._casts[id(parameter)] = parameter._version, cast
        return cast
