"""One call of the local sampler: the decoding path, the precision and the modes of its passes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from posttrain.engines.decoding_path import decoding_path
from posttrain.engines.engine import Rows
from posttrain.engines.precision import precision_of
from posttrain.models.compute import Compute
from posttrain.models.modes import evaluating_all


class Call:
    """The path and the modes of one call. They are chosen at its begin, and in force only during its passes."""

    def __init__(self, model: nn.Module, dtype: torch.dtype | None, compute: Compute, *, owns_weights: bool) -> None:
        """`dtype`: the precision of the products; None: as the weights are stored."""
        self._model, self._compute = model, compute
        self._modules = list(model.modules())
        self._owns_weights = owns_weights
        self.precision = precision_of(model, dtype)
        with evaluating_all(self._modules):
            self.path = decoding_path(model, dtype)

    def rows(self, max_rows: int, *, holds_prompt: bool) -> Rows:
        """Return storage for `max_rows` rows, which reads the weights as they are now."""
        with self._mode():
            return self.path.rows(self._model, max_rows=max_rows, holds_prompt=holds_prompt, compute=self._compute)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Put the path and the modes in force for the passes inside the `with` block."""
        with self._mode(), self.path.in_force(self._model):
            yield

    @contextmanager
    def _mode(self) -> Iterator[None]:
        """Decode without gradient and dropout, in the precision of decoding. Afterwards every module has its old mode.

        `inference_mode` is only for a copy of our own: training fails with a buffer that a shared module made in it.
        """
        without_gradient = torch.inference_mode() if self._owns_weights else torch.no_grad()
        with evaluating_all(self._modules), without_gradient, self.precision():
            yield
