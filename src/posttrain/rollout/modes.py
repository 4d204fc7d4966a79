"""Train and evaluation mode of modules that several parts use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards every module is in the mode in which it was."""
    in_training = [module for module in model.modules() if module.training]
    try:
        for module in in_training:
            module.training = False
        yield
    finally:
        for module in in_training:
            module.training = True
