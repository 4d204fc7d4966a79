"""Temporary states of models and of transformers: evaluation mode, recomputation, quiet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers.utils import logging

compiled: WeakSet[nn.Module] = WeakSet()
"""Layers of this process that torch.compile compiles (see compiled.py)."""


def as_written() -> AbstractContextManager[object]:
    """Run compiled layers uncompiled inside the `with` block; do nothing if there are none."""
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


def evaluating(model: nn.Module) -> AbstractContextManager[None]:
    """Evaluation mode with uncompiled layers; afterwards every module has its old mode again."""
    return evaluating_all(model.modules())


@contextmanager
def evaluating_all(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Do the same for modules that were listed before: in a large model, listing takes as long as a few layers."""
    in_training = [module for module in modules if module.training]
    try:
        for module in in_training:
            module.training = False
        with as_written():
            yield
    finally:
        for module in in_training:
            module.training = True


def recompute_activations(model: nn.Module, **settings: Any) -> None:
    """Keep only the input of each layer and recompute the rest; `settings` go to `torch.utils.checkpoint`.

    The method got another name in transformers 5.23; the old one disappears in version 6. Adapters pass both on.
    """
    enable: Any = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False, **settings})


class ComputingWide(TorchFunctionMode):
    """Inside, linear layers with weights in less than float32 compute in float32, without autocast."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (nn.functional.linear, torch.addmm):  # Conv1D uses addmm
            args = tuple(_widened(one) for one in args)
        return func(*args, **(kwargs or {}))


def _widened(given: Any) -> Any:
    narrow = isinstance(given, Tensor) and given.dtype in (torch.bfloat16, torch.float16)
    return given.float() if narrow else given


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Hide the progress bars of transformers inside the `with` block."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextmanager
def without_warnings() -> Iterator[None]:
    """Show only errors of transformers inside the `with` block; the caller itself makes other checks of a folder."""
    shown = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(shown)
