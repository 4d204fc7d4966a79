"""One call of the local sampler: by which path, in which precision and in which modes its passes run."""

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
    """Found out when it begins, and in force around its passes only: what is between two of them notices nothing."""

    def __init__(self, model: nn.Module, dtype: torch.dtype | None, compute: Compute, *, owns_weights: bool) -> None:
        """`dtype`: of the products; None: as the weights are stored."""
        self._model, self._compute = model, compute
        self._modules = list(model.modules())
        self._owns_weights = owns_weights
        self.precision = precision_of(model, dtype)
        with evaluating_all(self._modules):
            self.path = decoding_path(model, dtype)

    def rows(self, max_rows: int, *, holds_prompt: bool) -> Rows:
        """Storage for so many rows, which reads the weights as they are now."""
        with self._mode():
            return self.path.rows(self._model, max_rows=max_rows, holds_prompt=holds_prompt, compute=self._compute)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Around passes."""
        with self._mode(), self.path.in_force(self._model):
            yield

    @contextmanager
    def _mode(self) -> Iterator[None]:
        """No gradient, no dropout, the precision of decoding; every module is in its former mode afterwards.

        `inference_mode` for an own copy alone: a buffer that a shared module replaced in it could not be trained with.
        """
        without_gradient = torch.inference_mode() if self._owns_weights else torch.no_grad()
        with evaluating_all(self._modules), without_gradient, self.precision():
            yield
