"""States of models and of transformers that hold for a while: evaluation mode, recomputation, quiet."""

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
"""Layers of this process that torch.compile compiles (compiled.py)."""


def as_written() -> AbstractContextManager[object]:
    """Layers that are compiled elsewhere run as they are written; nothing where none are."""
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


def evaluating(model: nn.Module) -> AbstractContextManager[None]:
    """Evaluation mode, with layers as they are written; afterwards every module is in the mode in which it was."""
    return evaluating_all(model.modules())


@contextmanager
def evaluating_all(modules: Iterable[nn.Module]) -> Iterator[None]:
    """The same for modules that were looked up before: in a large model that takes as long as a few layers do."""
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
    """Keep of each layer its input alone; `settings` go to `torch.utils.checkpoint`.

    The switch got another name in transformers 5.23, and the former one goes with version 6; adapters pass both on.
    """
    enable: Any = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False, **settings})


class ComputingWide(TorchFunctionMode):
    """Inside, linear layers whose weights are held in less than float32 compute in float32, without autocast."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (nn.functional.linear, torch.addmm):  # the latter is that of Conv1D
            args = tuple(_widened(one) for one in args)
        return func(*args, **(kwargs or {}))


def _widened(given: Any) -> Any:
    narrow = isinstance(given, Tensor) and given.dtype in (torch.bfloat16, torch.float16)
    return given.float() if narrow else given


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """No progress bars of transformers inside; afterwards as before."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextmanager
def without_warnings() -> Iterator[None]:
    """Errors of transformers only; what else it would say of a folder is checked and said by the caller."""
    shown = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(shown)
