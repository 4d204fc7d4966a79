"""Modules that kernels compute in training: what all of them have in common.

What is recognised, by what it computes when it is tried, gets another class, which computes as before wherever there
are no kernels (`kernels.training_by`) or something waits for a part of it to be called. Copies have the class that the
model came with. Gradients of gradients are not defined.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks_of_all

_HOOKS_OF_ALL = (
    hooks_of_all._global_forward_hooks,
    hooks_of_all._global_forward_pre_hooks,
    hooks_of_all._global_backward_hooks,
    hooks_of_all._global_backward_pre_hooks,
)


class Fused(nn.Module):
    """What all of them have in common: a copy, pickled or not, is of the class that the model came with.

    A class that others derive from this one, or a method of it that they bind to a copy, works as well: what is not
    computed here is what `kind_of` says.
    """

    came_as: type[nn.Module]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _new, (kind_of(self),), {name: value for name, value in vars(self).items() if name != "reader"}


def fuse(module: nn.Module, how: type[Fused]) -> None:
    """From now on it computes in this way."""
    module.__class__ = _fused(type(module), how)


def kind_of(module: nn.Module) -> type[nn.Module]:
    """The class that the model came with."""
    return getattr(type(module), "came_as", type(module))


def is_plain(module: nn.Module) -> bool:
    """Nothing waits for it to be called."""
    own = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return not (any(own) or "forward" in vars(module) or any(_HOOKS_OF_ALL))


def holds_tensors(module: nn.Module) -> bool:
    """Parameters or buffers that are its own and no part's: a gain of one, at its start, shows in no trial."""
    return any(True for _ in chain(module.parameters(recurse=False), module.buffers(recurse=False)))


def exact(module: nn.Module) -> nn.Module:
    """To be tried in its place: a float32 copy of one in half precision, whose rounding would hide differences."""
    half = any(x.dtype in (torch.float16, torch.bfloat16) for x in module.parameters())
    return copy.deepcopy(module).float() if half else module


@contextmanager
def as_trained(module: nn.Module) -> Iterator[None]:
    """Inside it computes as in training, dropout of its own included; no random number is used up by that."""
    before = module.training
    with torch.random.fork_rng(devices=[]):
        module.training = True
        try:
            yield
        finally:
            module.training = before


def noise(*shape: int, like: Tensor, size: float = 10.0) -> Tensor:
    """The same numbers every time."""
    return size * torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(like.device, like.dtype)


def are_near(actual: object, expected: Tensor) -> bool:
    """Whether these are the expected numbers, but for rounding. Zeros say nothing: a projection that is zero at the
    start hides what stands before it."""
    if not isinstance(actual, Tensor) or actual.shape != expected.shape or not expected.any():
        return False
    tolerance = 2e-2 if actual.dtype in (torch.float16, torch.bfloat16) else 1e-5
    return bool((actual - expected).abs().max() <= tolerance * expected.abs().max())


@cache
def _fused(base: type[nn.Module], how: type[Fused]) -> type[nn.Module]:
    """That class, computed in this way; errors and printed models call it as before."""
    about = {"__module__": base.__module__, "__qualname__": base.__qualname__, "came_as": base}
    return type(base.__name__, (how, base), about)


def _new(base: type[nn.Module]) -> nn.Module:
    return base.__new__(base)
