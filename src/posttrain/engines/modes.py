"""Train and evaluation mode of modules that several parts use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

from torch import nn


def evaluating(model: nn.Module) -> AbstractContextManager[None]:
    """Evaluation mode; afterwards every module is in the mode in which it was."""
    return evaluating_all(model.modules())


@contextmanager
def evaluating_all(modules: Iterable[nn.Module]) -> Iterator[None]:
    """The same for modules that were looked up before: in a large model that takes as long as a few layers do."""
    in_training = [module for module in modules if module.training]
    try:
        for module in in_training:
            module.training = False
        yield
    finally:
        for module in in_training:
            module.training = True
